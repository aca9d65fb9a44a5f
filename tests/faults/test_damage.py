"""Damaged index files: opening survives them, finds them out before parsing, and loses no document."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indexes.base.child import child_environment
from indexes.base.model import Delete
from indexes.collection.collection import Collection
from tests.support.inspection import consistent
from tests.support.opener import TUNING
from tests.support.vectors import make_collection, rebuild
from tests.support.versions import document

ROOT = Path(__file__).parents[2]
HINTS = {"CURRENT", "hits.msgpack"}  # without a checksum: whatever they say, no document is lost
LIVE, BEFORE = 2, 1
MANIFEST = f"generations/{LIVE:06d}/manifest.json"
DOCUMENTS = 250
ROUNDS_IN_CI = 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with two generations, the live one with all its files, and writes and deletions after each."""
    folder = tmp_path_factory.mktemp("whole") / "c"
    collection = make_collection(folder, options=TUNING, hot_capacity=100)
    for start in range(0, DOCUMENTS, 50):
        collection.write([document(number, 1) for number in range(start, start + 50)]).result()
    rebuild(collection)
    collection.write([document(number, 2) for number in range(0, DOCUMENTS, 9)]).result()
    rebuild(collection)
    collection.write([Delete("d1"), Delete("d248"), document(0, 3)]).result()
    collection.hits.count([10, 20, 30])
    collection.close()
    return folder


class Opener:
    """Opens folders in a child of its own."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.opener"],
            cwd=ROOT,
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def open(self, folder: Path) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{folder}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        assert answer, f"opening killed the process: status {self._child.wait()}"
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def close(self) -> None:
        self._child.communicate()


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    opener = Opener()
    yield opener
    opener.close()


# -- ways to damage a file; each changes its bytes

Damage = Callable[[bytes, random.Random], bytes | None]


def flip_a_bit(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def overwrite_a_block(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    size = min(rng.randint(1, 4096), len(content) - at)
    block = bytes(size) if any(content[at : at + size]) else b"\xff" * size
    return content[:at] + block + content[at + size :]


def cut_short(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def empty(content: bytes, rng: random.Random) -> bytes:
    return b""


def remove(content: bytes, rng: random.Random) -> None:
    return None


def append(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.randint(1, 100))


DAMAGES: list[Damage] = [flip_a_bit, overwrite_a_block, cut_short, empty, remove, append]


def index_files(folder: Path) -> list[str]:
    """Every file of the live generation, and the hints beside it."""
    live = folder / "generations" / f"{LIVE:06d}"
    files = {
        str(path.relative_to(folder)) for path in live.rglob("*") if path.is_file() and path.stat().st_size
    }
    return sorted(files | HINTS)


def check(answer: dict[str, Any], name: str) -> None:
    """Every document is found. Damage to the live generation brings back the one before it."""
    assert answer.get("documents") == DOCUMENTS - 2, (name, answer)
    if name not in HINTS:
        assert answer["generation"] == BEFORE, (name, answer)


def damaged(whole: Path, name: str, damage: Damage, rng: random.Random, folder: Path) -> Path:
    shutil.copytree(whole, folder)
    path = folder / name
    content = damage(path.read_bytes(), rng)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    return folder


def damage_everything(whole: Path, opener: Opener, folder: Path, seed: int) -> int:
    """One random damage to each file; how many there were."""
    rng = random.Random(seed)
    names = index_files(whole)
    for name in names:
        damage = rng.choice(DAMAGES)
        copy = damaged(whole, name, damage, rng, folder / "copy")
        check(opener.open(copy), name)
        shutil.rmtree(copy)
    return len(names)


def test_an_undamaged_copy(whole: Path, opener: Opener) -> None:
    """The live generation is used, and nothing asks for a rebuild."""
    answer = opener.open(whole)
    assert (answer["generation"], answer["documents"]) == (LIVE, DOCUMENTS - 2)
    assert answer["wants_rebuild"] is None


@pytest.mark.parametrize("seed", range(ROUNDS_IN_CI))
def test_damage_to_every_file(whole: Path, opener: Opener, tmp_path: Path, seed: int) -> None:
    """Whichever file it is: the process lives, the older generation serves, every document is found."""
    assert damage_everything(whole, opener, tmp_path, seed) > 15


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_much_damage(whole: Path, opener: Opener, tmp_path: Path) -> None:
    """The same, NEARLINE_TORTURE_DAMAGES times (1,000)."""
    wanted, done, seed = int(os.environ.get("NEARLINE_TORTURE_DAMAGES", "1000")), 0, 1000
    while done < wanted:
        done += damage_everything(whole, opener, tmp_path, seed)
        seed += 1


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_to_both_generations(whole: Path, opener: Opener, tmp_path: Path, damage: Damage) -> None:
    """With no whole generation left the log serves alone."""
    rng = random.Random(5)
    copy = damaged(whole, f"generations/{LIVE:06d}/vectors.f16", damage, rng, tmp_path / "c")
    path = copy / "generations" / f"{BEFORE:06d}" / "ids.npy"
    path.write_bytes(damage(path.read_bytes(), rng) or b"")
    answer = opener.open(copy)
    assert (answer.get("generation"), answer.get("documents")) == (0, DOCUMENTS - 2), answer


def test_files_of_two_generations_swapped(whole: Path, opener: Opener, tmp_path: Path) -> None:
    """A whole file in the wrong generation is damage to both."""
    shutil.copytree(whole, tmp_path / "c")
    one, other = (tmp_path / "c" / "generations" / f"{number:06d}" / "hot.hnsw" for number in (BEFORE, LIVE))
    aside = one.rename(tmp_path / "aside")
    other.rename(one)
    aside.rename(other)
    answer = opener.open(tmp_path / "c")
    assert (answer.get("generation"), answer.get("documents")) == (0, DOCUMENTS - 2), answer


@pytest.mark.parametrize("field", ["seq", "hot", "last_passage", "ef", "recall", "built_ms"])
def test_a_manifest_that_is_valid_json_and_wrong(
    whole: Path, opener: Opener, tmp_path: Path, field: str
) -> None:
    """One other digit in the manifest is found out as well: the seq in it decides what is hidden."""

    def change(content: bytes, rng: random.Random) -> bytes:
        start = content.index(f'"{field}"'.encode())
        at = next(at for at in range(start, len(content)) if chr(content[at]).isdigit())
        return content[:at] + (b"2" if content[at] == ord("3") else b"3") + content[at + 1 :]

    copy = damaged(whole, MANIFEST, change, random.Random(0), tmp_path / "c")
    check(opener.open(copy), MANIFEST)


def test_damage_asks_for_a_rebuild(whole: Path, tmp_path: Path) -> None:
    """Opened without its live generation, a collection wants to be rebuilt, and is as before once it was."""
    folder = damaged(whole, f"generations/{LIVE:06d}/ids.npy", flip_a_bit, random.Random(0), tmp_path / "c")
    collection = Collection(folder, TUNING)
    assert collection.snapshot.generation == BEFORE
    wanted = collection.wants_rebuild()
    rebuild(collection)
    assert len(consistent(collection)) == DOCUMENTS - 2
    assert collection.snapshot.generation == LIVE + 1
    assert collection.wants_rebuild() is None
    collection.close()
    assert wanted is not None


def test_a_generation_that_was_half_removed(whole: Path, opener: Opener, tmp_path: Path) -> None:
    """A kill while an old generation is cleared away leaves a numbered folder without files: nothing minds it."""
    shutil.copytree(whole, tmp_path / "c")
    (tmp_path / "c" / "generations" / f"{BEFORE:06d}" / "manifest.json").unlink()
    answer = opener.open(tmp_path / "c")
    assert (answer.get("generation"), answer.get("documents")) == (LIVE, DOCUMENTS - 2), answer
    collection = Collection(tmp_path / "c", TUNING)
    rebuild(collection)
    assert collection.shelf.numbers() == [LIVE, LIVE + 1]
    assert collection.rollback().number == LIVE
    collection.close()
