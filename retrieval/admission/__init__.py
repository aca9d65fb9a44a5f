"""Which requests are let in, and whose turn is it?

Bounds for each class of requests, shares by access key, turns, the pace of work, and the ceiling of memory. Who a
caller is, is decided in `access`.
"""
