"""A program that opens collections, in a process that damage may kill: a folder a line in, a JSON object a line out.

{"generation", "documents", "passages", "wants_rebuild"}    or    {"failed": what was raised}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from tests.support.inspection import consistent

TUNING = IndexOptions(
    delta_passages_max=1024, segments_max=0
)  # large: nothing is sealed while one folder after the other is opened


def describe(folder: Path) -> dict[str, object]:
    """What is found after opening, once log, counts, filters and searches agree about it."""
    collection = Collection(folder, TUNING)
    try:
        return {
            "generation": collection.snapshot.generation,
            "documents": len(consistent(collection)),
            "passages": collection.snapshot.live,
            "wants_rebuild": collection.wants_rebuild(),
        }
    finally:
        collection.close()


def main() -> None:
    for line in sys.stdin:
        try:
            answer = describe(Path(line.strip()))
        except Exception as error:  # noqa: BLE001 - it is the answer
            answer = {"failed": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
