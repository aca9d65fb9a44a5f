"""HTTP handlers. Each decodes, calls one thing, and encodes."""
