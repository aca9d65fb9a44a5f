"""Which passages have this metadata? The filter grammar, and typed indexes that answer it with bitmaps."""
