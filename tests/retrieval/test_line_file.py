"""Files of JSON lines: what is damaged in them costs no more than itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from retrieval.upkeep.line_file import LineFile, encode


class Entry(msgspec.Struct):
    number: int


@pytest.mark.parametrize("damage", [b'{"number": "x"}', b"\xff\xfe", b"", b'{"number": 1'], ids=str)
def test_a_damaged_line_is_left_out(tmp_path: Path, damage: bytes) -> None:
    """The others are read, more can be appended, and the damaged one goes when the file is next written whole."""
    file = LineFile(tmp_path / "lines.jsonl", "uid", Entry)
    file.append(b"".join(encode(Entry(number)) for number in range(4)), 1000)
    lines = file.path.read_bytes().splitlines()
    file.path.write_bytes(b"\n".join([*lines[:2], damage, *lines[3:]]) + b"\n")
    file.append(encode(Entry(9)), 1000)
    assert [one.number for one in file.read()[1]] == [0, 2, 3, 9]
    file.retain(lambda one: one.number != 3)
    assert [one.number for one in file.read()[1]] == [0, 2, 9]
    assert len(file.path.read_bytes().splitlines()) == 4


def test_a_torn_end_is_written_over(tmp_path: Path) -> None:
    """What a crash left of an entry does not swallow the next one; another collection's file is started over."""
    file = LineFile(tmp_path / "lines.jsonl", "uid", Entry)
    file.append(encode(Entry(1)), 1000)
    with file.path.open("ab") as torn:
        torn.write(b'{"numb')
    file.append(encode(Entry(2)), 1000)
    assert [one.number for one in file.read()[1]] == [1, 2]
    assert LineFile(file.path, "other", Entry).read()[1] == []
