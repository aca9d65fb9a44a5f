"""How does a collection outlive its machine?

Object storage holds the log of each collection and its checkpoints, and what concerns all of them: names, aliases,
access keys. Here are the objects and what one writer may do with them, uploading, restoring, the comparison of a
directory with its store, and replicas that follow it. Not here: copies in a folder (`directory/backup`).
"""
