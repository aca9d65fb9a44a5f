"""Compares Nearline with its alternatives: the service, the index, BM25, embedding, and cold-tier skipping.

`turns` runs every engine in its own process; `texts` provides the data they search; `report` writes the result.
"""
