"""Which passages answer a query, and in which order?

The plan of a search, its way through embedding and both searchers, fusion, relevance, reranking with the cross-encoder,
the options (boosts, diversity, highlights, facets, examples), the threads it runs on, and whether an answer survives a
write. Not here: parsing filters and correcting typing errors (`indexes`), keeping answers (`cache`), or packing a
prompt (`context`).
"""
