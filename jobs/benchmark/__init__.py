"""Compares Nearline with its alternatives: the service, the index, BM25, embedding, and cold-tier skipping; and the
service with itself, under more load than it can answer.

`turns` runs every engine in its own process; `texts` provides the data they search; `report` writes the result.
`callers` are what `load` is put on the service by.
"""
