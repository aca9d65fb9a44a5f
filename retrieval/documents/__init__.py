"""What happens to a document that is written?

Uploads, outlines, chunking into passages, metadata, and writing to a collection.
"""
