"""Nearline beside what people use instead: the service, the index, BM25, embedding, and skipping the cold tier.

`turns` runs every engine in a process of its own; `texts` has what they search; `report` writes the result.
"""
