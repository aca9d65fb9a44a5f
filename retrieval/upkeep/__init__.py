"""What does the service do besides answering requests?

Background tasks: rebuilds, expiry, healing, frequent queries; and the query and feedback logs.
"""
