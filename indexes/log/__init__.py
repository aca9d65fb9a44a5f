"""What was written? The SQLite log of a collection, its source of truth, and the code that reads it back."""
