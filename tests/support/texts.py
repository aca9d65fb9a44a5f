"""Real texts out of the shared collections, for tests that made-up words would not be hard enough for."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path


def read_texts(folder: Path, *, file: str = "corpus.jsonl.gz", limit: int | None = None) -> list[str]:
    """Title and text of the documents of a collection, or the questions of its queries file."""
    with gzip.open(folder / file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, limit)]
    return [f"{row['title']}\n{row['text']}" if row.get("title") else row["text"] for row in rows]
