"""Nearline beside the libraries people use instead: the service, the index, BM25, embedding, and skipping the cold tier.

`turns` runs every engine in a process of its own, in short turns; `texts` has what they search; `report` writes the result.
"""
