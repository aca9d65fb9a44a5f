"""How is the service put together?

The application with its routes and middlewares, connections, the OpenAPI description, start and stop.
"""
