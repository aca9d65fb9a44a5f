"""Which requests are admitted, and whose turn is it?

Bounds for each class of requests, shares by access key, turns, the pace of work, and the memory ceiling. `access`
decides who a caller is.
"""
