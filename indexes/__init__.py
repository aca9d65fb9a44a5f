"""The index library: log, tiers, snapshots, generations. Synchronous; knows nothing of HTTP, Redis or models."""
