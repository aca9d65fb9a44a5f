"""What was written?

The SQLite log of a collection, which is its source of truth: the single writer and its group commits, readers in any
process, `log.mark` and the checks that notice a lost file, the content hash, and rewriting the log without deleted
content. Not here: the indexes made from it (`parts`, `rebuild`), or the sample of users' queries
(`retrieval/upkeep`).
"""
