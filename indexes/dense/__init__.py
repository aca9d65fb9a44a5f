"""Which passages are nearest to this vector?

Stored vectors, exact scans, the hot HNSW graph, the cold lists with their training, the codes of segments, and the
decision to skip the cold tier. Not here: making a vector from a text (`retrieval/embedding`), or choosing which
passages are hot (`rebuild`).
"""
