"""How is the service put together, started and stopped?

The application with its table of routes, its middlewares, slow and silent connections, the early refusal of requests
under a flood, and the OpenAPI description. Not here: TLS, signals and the process (`jobs/serving`).
"""
