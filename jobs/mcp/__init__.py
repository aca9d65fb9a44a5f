"""How do assistants use a service?

The tools search, fetch and context of the Model Context Protocol, which call a running service. Not here: other
servers' APIs that the service implements (`retrieval/dialects`).
"""
