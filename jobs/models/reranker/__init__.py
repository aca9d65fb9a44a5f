"""How is a small cross-encoder trained on a collection's own judgments?

Start reading at `mining`, then `training`. Not here: rereading hits with it during a search (`retrieval/search`).
"""
