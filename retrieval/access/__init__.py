"""Who is the caller, what may they do, and how much?

Access keys with their scopes and tenants, the file that holds them, limits of each key (requests a second, a day and at
one time), and noise on raw vectors. Not here: refusing requests because the service is busy (`admission`).
"""
