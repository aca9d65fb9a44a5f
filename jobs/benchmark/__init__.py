"""How does Nearline compare with other libraries, with other loads, and with an earlier version of itself?

The service, the index, BM25, embedding, ranking, the caches, and overload. `turns` runs every engine in its own
process, `texts` provides the data, `callers` put load on a service, `report` writes the result. Not here: measuring one
user's collection (`jobs/evaluation`).
"""
