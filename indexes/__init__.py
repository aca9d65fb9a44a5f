"""The index library: stores passages and finds them. It is synchronous and knows no network, cache server or model.

Its rooms, each of which imports only from those before it: base, filters, dense | lexical | log, parts, rebuild,
collection, reading, upkeep, directory.
"""
