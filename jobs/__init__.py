"""What runs beside the service: the command line, and the jobs behind it.

Its packages, each of which imports only from those before it: sources, models | ingestion | serving, evaluation,
benchmark | cluster | mcp, commands, cli.
"""
