"""What does the service tell its operator?

Metrics, traces, and one log line for each request. Not here: the sample of users' queries kept for evaluation
(`upkeep`).
"""
