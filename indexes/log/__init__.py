"""What was written? The SQLite log of a collection, the only truth, and whatever reads it back."""
