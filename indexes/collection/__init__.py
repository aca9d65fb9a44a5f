"""What can be done with one collection?

Opening and recovering it, writing, deleting, publishing the snapshot that searches read, beginning a rebuild and
adopting its generation; and the counts and sizes it reports. Not here: the search itself (`parts`), the rows on disk
(`log`), or the directory that holds all collections (`directory`).
"""
