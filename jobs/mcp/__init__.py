"""How do assistants use a service?

Tools of the Model Context Protocol (search, fetch, context), which call a running service. Not here: other servers'
APIs spoken by the service (`retrieval/dialects`).
"""
