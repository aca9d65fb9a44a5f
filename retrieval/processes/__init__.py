"""How is a search answered in another process?

`asking.InProcesses` is the entry: it gives a planned search to a process and accounts for the result. `pool` starts the
processes and chooses one for each search; `worker` is what such a process does; `frames` are the values that travel
between them. Not here: what a search does (`retrieval/search`), and how a process follows what is written to a
collection (`indexes/collection/replica.py`).
"""
