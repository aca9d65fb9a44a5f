"""What can an operator see?

Metrics, traces and the request log.
"""
