"""How is a search answered in another process?

`pool` starts the search processes and gives each search to one of them; `worker` is what such a process does; `frames`
are the values that travel between them. Not here: what a search does (`retrieval/search`), and how a collection is
followed (`indexes/collection/replica.py`).
"""
