"""What does a data directory hold?

Its marker `nearline.json` and its lock, the catalog of collections with their aliases and quarantines, and their
backup. Not here: what is inside one collection (`collection`).
"""
