"""What becomes of a document that is written?

Uploads, outlines, cutting into passages, metadata, and writing to a collection.
"""
