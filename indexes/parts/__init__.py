"""What does one search read?

Delta, segments and generations, and the snapshot that holds them: the query prepared against it, the candidates it
returns, and the masks that hide deleted and expired passages from searches. Not here: the algorithms inside a part
(`dense`, `lexical`, `filters`), or deleting what has expired (`retrieval/upkeep`).
"""
