"""What do all rooms of the index library share?

The error tree, value types, durable publishing of files, failpoints, array helpers, detection of languages, and work in
child processes. Not here: anything that knows what a collection, an index or a log is.
"""
