"""What else is read from a collection, besides searching it?

Counts of metadata values (facets), walking all documents page by page, and the text around a passage. Not here: the
text of a cursor, which the HTTP handler encodes (`retrieval/handlers`).
"""
