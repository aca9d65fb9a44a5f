"""What do requests and answers look like as JSON?

All request and answer types of the REST API, how bodies are decoded, and the errors with their statuses. It knows
nothing of HTTP handlers.
"""
