"""What is in a data directory?

Its marker and lock, the catalog of collections, and their backup.
"""
