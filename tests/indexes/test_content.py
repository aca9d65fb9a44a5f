"""What a collection holds, as a hash; and the format of its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from indexes.base.errors import Damaged, NewerFormat, OlderFormat
from indexes.base.model import Delete, IndexOptions, Operation, Upsert
from indexes.log.content import ContentHash
from indexes.log.log import Log
from tests.support.vectors import World, settings

WORLD = World(dimensions=4)
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)


def quiet(stage: str, done: int, total: int) -> None:
    pass


def versioned(number: int, version: int = 0) -> Upsert:
    """The same document with the same digest, whenever and wherever it is written."""
    return replace(WORLD.document(number, version=version), digest=bytes([number, version]) * 16)


def content_after(path: Path, commits: Sequence[Sequence[Operation]]) -> bytes:
    path.unlink(missing_ok=True)
    log = Log.create(path, settings(dimensions=4), "uid")
    for operations in commits:
        log.commit([operations])
    content = log.content
    log.close()
    return content


# --- the hash -----------------------------------------------------------------------------------------------


operations = st.lists(
    st.builds(versioned, st.integers(0, 4), st.integers(0, 2))
    | st.integers(0, 4).map(lambda number: Delete(f"d{number}")),
    max_size=12,
)


@bounded(max_examples=30, deadline=None)
@given(first=operations, second=operations)
def test_equal_exactly_where_the_documents_are(
    tmp_path_factory: pytest.TempPathFactory, first: list[Operation], second: list[Operation]
) -> None:
    """Whatever order, commits and detours led there: equal documents, equal hash; other documents, another hash."""
    folder = tmp_path_factory.mktemp("logs")

    def held(all_operations: list[Operation]) -> dict[str, bytes]:
        documents: dict[str, bytes] = {}
        for operation in all_operations:
            documents.pop(operation.id, None)
            if isinstance(operation, Upsert):
                documents[operation.id] = operation.digest
        return documents

    one = content_after(folder / "one.db", [[operation] for operation in first])
    other = content_after(folder / "other.db", [second])
    assert (one == other) == (held(first) == held(second))
    at_once = [versioned(int(name[1:]), digest[1]) for name, digest in reversed(held(first).items())]
    assert content_after(folder / "one.db", [at_once]) == one


def test_it_is_kept_with_the_documents(tmp_path: Path) -> None:
    """Opened again, a log has the hash of its last commit; a commit that is taken back changes nothing."""
    log = Log.create(tmp_path / "log.db", settings(dimensions=4), "uid")
    log.commit([[versioned(1), versioned(2)]])
    before = log.content
    broken = replace(versioned(3), metadata={"x": object()})
    with pytest.raises(TypeError):
        log.commit([[versioned(4), broken]])
    assert log.content == before
    log.close()
    again = Log(log.path)
    assert again.content == before
    again.close()


def test_a_document_without_a_digest_is_like_no_other(tmp_path: Path) -> None:
    """Two logs whose writers gave no digests have different hashes, although the documents look the same."""
    hashes = {content_after(tmp_path / "log.db", [[WORLD.document(1)]]) for _ in range(2)}
    assert len(hashes) == 2


def test_digests_are_read_back(tmp_path: Path) -> None:
    """Of those documents that live, by id."""
    log = Log.create(tmp_path / "log.db", settings(dimensions=4), "uid")
    log.commit([[versioned(1), versioned(2), versioned(3)], [Delete("d3")]])
    assert log.digests(["d1", "d3", "nobody"]) == {"d1": versioned(1).digest}
    log.close()


def test_a_hash_of_another_length_is_damage() -> None:
    """What is not as long as the sums were not written by us."""
    with pytest.raises(Damaged, match="2047 bytes, expected 2048"):
        ContentHash(bytes(2047))


# --- formats ------------------------------------------------------------------------------------------------


def numbered(path: Path, change: str) -> Path:
    Log.create(path, settings(dimensions=4), "uid").close()
    db = apsw.Connection(str(path))
    db.execute(change)
    db.close()
    return path


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    """The error names both formats."""
    path = numbered(tmp_path / "log.db", "UPDATE meta SET value = '5' WHERE key = 'format'")
    with pytest.raises(NewerFormat, match="log format 5, this version reads 1"):
        Log(path)


def test_a_log_from_before_the_first_version_is_refused(tmp_path: Path) -> None:
    """It had numbers, too, in a field of another name: none of them is taken for one of ours."""
    path = numbered(tmp_path / "log.db", "UPDATE meta SET key = 'format_version' WHERE key = 'format'")
    with pytest.raises(OlderFormat, match="a development version of nearline"):
        Log(path)
