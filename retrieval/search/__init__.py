"""Which passages answer a query?

The plan of a search; the stages it goes through: embedding, the two searchers, fusion, reranking and the options; and
the threads it runs on.
"""
