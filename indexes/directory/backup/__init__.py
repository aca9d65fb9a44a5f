"""How is a collection backed up, restored and verified while the service runs?

Not here: erasing deleted content (`upkeep`), or recovery when a collection opens (`collection`).
"""
