"""How is the service assembled?

The application with its routes and middlewares, connections, the OpenAPI description, startup and shutdown.
"""
