"""How do assistants use a service?

Tools by the Model Context Protocol.
"""
