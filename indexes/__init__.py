"""The index library: stores passages and finds them. It is synchronous and knows no HTTP, cache server or model; only
`store` uses a network, for object storage.

Its packages, each of which imports only from those before it: base, filters, dense | lexical | log, parts, rebuild,
collection, reading, upkeep, directory, store.
"""
