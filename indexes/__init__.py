"""The index library: synchronous, without network, cache server or embedding model."""
