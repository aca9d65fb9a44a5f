"""Which passages have this metadata?

The grammar that a filter is parsed by, the typed indexes that answer it with bitmaps, comparison of dates, and what a
refused filter is told. Not here: which metadata a document may have (`retrieval/documents`), or counting values
(`reading`).
"""
