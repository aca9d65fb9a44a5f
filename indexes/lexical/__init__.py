"""Which passages hold these words? Text analysis, inverted indexes, BM25."""
