"""Which passages are nearest to this vector? Stored vectors, the hot graph, the cold lists."""
