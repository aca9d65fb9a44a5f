"""What keeps the files and settings of a collection in shape?

Erasing deleted content from every file, and tuning a live generation's search settings by queries. Not here: scheduling
of these jobs and deleting expired documents (`retrieval/upkeep`).
"""
