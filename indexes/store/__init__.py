"""How does a collection outlive its machine?

Object storage holds the log of each collection, its checkpoints and its newest generations, and what concerns all of
them: names, aliases, access keys. Here are the objects and what one writer may do with them, uploading, restoring, and
the comparison of a directory with its store. Not here: copies in a folder (`directory/backup`).
"""
