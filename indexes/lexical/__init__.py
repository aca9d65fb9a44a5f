"""Which passages contain these words? Text analysis, inverted indexes, BM25."""
