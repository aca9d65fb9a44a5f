"""Is there room for this request now, and whose turn is it?

Places for each class of requests, shares by access key, turns under overload, the pace of the work under way, and the
ceiling of memory: a busy service's 429 and its Retry-After are decided here. Not here: who a caller is and the limits
of one key (`access`).
"""
