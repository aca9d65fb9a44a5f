"""Who may do what, and how much of it?

Access keys with their scopes and tenants, the file that holds them, rate limits, and what must never be logged.
"""
