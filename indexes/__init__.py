"""The index library: log, tiers, snapshots, generations. Synchronous; independent of HTTP, Redis and models."""
