"""The service: HTTP, embedding, caching, the query pipeline, context building, and a client for it."""
