"""Embedding engines beside each other, on the same texts and the same weights in one run, each in its own process."""
