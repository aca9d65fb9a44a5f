"""Which passages contain these words?

Text analysis (words, stems, stopwords), inverted indexes, BM25 with its statistics, phrases and prefixes, the
correction of typing errors, and where words stand in a text. Not here: joining BM25 with the dense ranking
(`retrieval/search`).
"""
