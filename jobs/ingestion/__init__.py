"""How do documents get from files into a running service?

Sending documents, keeping a collection equal to a folder, following a folder, and copying a collection for another
model. Not here: reading the files (`jobs/sources`), or checking and cutting documents (`retrieval/documents`).
"""
