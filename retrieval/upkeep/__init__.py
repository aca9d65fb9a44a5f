"""What does the service do besides answering?

Background tasks: rebuilds, expiry, healing, frequent queries; and the logs of queries and feedback.
"""
