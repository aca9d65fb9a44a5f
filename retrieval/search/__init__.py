"""Which passages answer a query?

The plan of a search, its way through embedding, the two searchers, fusion, reranking and the options, and the threads
it runs on.
"""
