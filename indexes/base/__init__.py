"""What do all parts of the index library use?

Errors, types, durable files, arrays, languages and child processes. It imports nothing of the library.
"""
