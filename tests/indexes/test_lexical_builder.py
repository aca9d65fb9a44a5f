"""Indexes built through the disk, and indexes made of several, against indexes built at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from indexes.base.errors import DiskFull, InvalidInput, NotReady
from indexes.base.model import Bm25
from indexes.base.work import OnStep
from indexes.lexical.analysis import AnalyzedQuery
from indexes.lexical.bm25 import Statistics, weigh
from indexes.lexical.building import LexicalBuilder, merge_sealed
from indexes.lexical.postings import SLICE_POSTINGS, TF_MAX, GrowingLexical, SealedLexical
from indexes.lexical.postings import TERMS_AT_ONCE as SEALED_AT_ONCE
from indexes.lexical.runs import TERMS_AT_ONCE
from tests.support.scoring import score_all
from tests.support.texts import read_texts

ROOT = Path(__file__).parents[2]
POSTING = 32  # bytes of buffer for each

TEXT = st.one_of(
    st.lists(
        st.sampled_from(["apple", "pear", "plums", "fig", "nut", "東京都", "naïve", "zebra9"]), max_size=9
    ).map(" ".join),
    st.text(max_size=12),
)


def built_at_once(texts: Sequence[str]) -> SealedLexical:
    index = GrowingLexical()
    for text in texts:
        index.add(text)
    return index.seal(len(texts))


def build(
    folder: Path, texts: Sequence[str], order: Sequence[int], *, buffer_bytes: int, block: int = 7
) -> dict[str, bytes]:
    """The files that LexicalBuilder writes when the texts, one for each row, come in this order."""
    (folder / "scratch").mkdir()
    (folder / "built").mkdir()
    with LexicalBuilder(folder / "scratch", len(texts), buffer_bytes=buffer_bytes) as builder:
        for start in range(0, len(order), block):
            rows = np.array(order[start : start + block], np.int64)
            builder.add(rows, [texts[row] for row in rows])
        builder.save(folder / "built")
    return files_of(folder / "built")


def saved(index: SealedLexical, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    index.save(folder)
    return files_of(folder)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- building -----------------------------------------------------------------------------------------------


@given(st.lists(TEXT, max_size=25), st.randoms(use_true_random=False), st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_any_texts_in_any_order_give_the_same_files(texts: list[str], random: Random, postings: int) -> None:
    """Byte for byte what an index built at once saves, also where a term alone is larger than the buffer."""
    order = list(range(len(texts)))
    random.shuffle(order)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = build(folder, texts, order, buffer_bytes=postings * POSTING)
        assert files == saved(built_at_once(texts), folder / "expected")


@pytest.mark.parametrize(
    ("buffer_bytes", "every"),
    [
        pytest.param(1 << 20, 1, marks=pytest.mark.slow, id="many runs"),
        pytest.param(64 << 20, 8, id="one run"),
    ],
)
def test_real_texts_give_the_same_files(
    tmp_path: Path, shared_data: Path, buffer_bytes: int, every: int
) -> None:
    """Eleven languages and a dictionary, in random order: one run, or many and more terms than fit one merge."""
    texts = read_texts(shared_data / "xquad-r") + read_texts(shared_data / "dict-en", limit=2000)
    expected = built_at_once(texts := texts[::every])
    assert every > 1 or len(expected.names) > TERMS_AT_ONCE
    order = np.random.default_rng(3).permutation(len(texts)).tolist()
    files = build(tmp_path, texts, order, buffer_bytes=buffer_bytes, block=500)
    assert files == saved(expected, tmp_path / "expected")


@pytest.mark.parametrize("texts", [[], ["", "...", ""], ["", "apple", ""]])
def test_rows_without_terms_have_no_postings(tmp_path: Path, texts: list[str]) -> None:
    """An index may be empty, whole or in places."""
    assert build(tmp_path, texts, range(len(texts)), buffer_bytes=1 << 20) == saved(
        built_at_once(texts), tmp_path / "expected"
    )


def test_rows_that_never_come_are_empty(tmp_path: Path) -> None:
    """A passage deleted while the build reads leaves a row of length 0 behind."""
    files = build(tmp_path, ["apple", "gone", "pear"], [2, 0], buffer_bytes=1 << 20)
    assert files == saved(built_at_once(["apple", "", "pear"]), tmp_path / "expected")


def test_a_frequency_stops_at_its_largest(tmp_path: Path) -> None:
    """A term repeated more often than 16 bits can count keeps the largest count; the length stays true."""
    texts = ["apple " * (TF_MAX + 10), "apple pear"]
    files = build(tmp_path, texts, [1, 0], buffer_bytes=64)
    assert files == saved(built_at_once(texts), tmp_path / "expected")
    index = SealedLexical.load(tmp_path / "built")
    assert index.postings("appl")[1].tolist() == [TF_MAX, 1]
    assert index.lengths.tolist() == [TF_MAX + 10, 2]


def test_a_row_is_taken_once(tmp_path: Path) -> None:
    """A second text for a row, and a row outside of the index, are refused by name."""
    with LexicalBuilder(tmp_path, 3) as builder:
        builder.add(np.array([1]), ["apple"])
        for rows in ([1], [0, 0], [3], [-1]):
            with pytest.raises(InvalidInput) as refused:
                builder.add(np.array(rows, np.int64), ["pear"] * len(rows))
            assert refused.value.param == "rows"


ROWS, TERMS, BUFFER_BYTES = 8000, 500, 256 << 10


def print_build_peak(folder: str) -> None:
    rng = np.random.default_rng(5)
    tracemalloc.start()
    with LexicalBuilder(Path(folder), ROWS, buffer_bytes=BUFFER_BYTES) as builder:
        for start in range(0, ROWS, 50):
            block = rng.integers(0, TERMS, (50, 60))
            builder.add(np.arange(start, start + 50), [" ".join(f"w{at}" for at in text) for text in block])
        builder.save(Path(folder))
    print(tracemalloc.get_traced_memory()[1])  # noqa: T201


@pytest.mark.slow
def test_memory_does_not_grow_with_the_postings(tmp_path: Path) -> None:
    """At its peak: the buffer, the lengths, the vocabulary and one block of texts, whatever the number of postings.
    Measured in a process of its own, because threads of other tests would count."""
    code = f"from {__name__} import print_build_peak as run; run({str(tmp_path)!r})"
    peak = int(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    )
    postings = len(SealedLexical.load(tmp_path).rows)
    bound = BUFFER_BYTES + 4 * ROWS + 400 * TERMS + (256 << 10)
    assert peak < bound < 2 * postings


def test_a_killed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    """The scratch folder is empty while a build runs, and after the process was killed in the middle of it."""
    code = f"""
import sys, numpy
from pathlib import Path
from indexes.lexical.building import LexicalBuilder
builder = LexicalBuilder(Path({str(tmp_path)!r}), 1000, buffer_bytes=320)
builder.add(numpy.arange(900), ["apple pear plum %d" % at for at in range(900)])
print("added", flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "added\n"
        assert not list(tmp_path.iterdir())
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SealedLexical.FILES)
def test_a_full_disk_is_told_from_a_broken_one(tmp_path: Path, name: str) -> None:
    """Whichever file there is no room for, the error says so, and the scratch is given back."""
    (tmp_path / "built").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "built" / f"{name}.npy").symlink_to("/dev/full")
    with LexicalBuilder(tmp_path / "scratch", 100, buffer_bytes=640) as builder:
        builder.add(np.arange(100), [f"apple pear{at}" for at in range(100)])
        with pytest.raises(DiskFull):
            builder.save(tmp_path / "built")
    assert not list((tmp_path / "scratch").iterdir())


# --- merging ------------------------------------------------------------------------------------------------


def kept_of(parts: Sequence[Sequence[str]], masks: Sequence[NDArray[np.bool_]]) -> list[str]:
    return [text for texts, mask in zip(parts, masks) for text, kept in zip(texts, mask) if kept]


def assert_same(found: SealedLexical, expected: SealedLexical, folder: Path) -> None:
    assert saved(found, folder / "found") == saved(expected, folder / "expected")


def scores_of(index: SealedLexical, query: str) -> list[float]:
    statistics = Statistics(index.size, index.length)
    return score_all(index, weigh(AnalyzedQuery.of(query), [index], statistics, Bm25())).tolist()


PARTS = st.lists(st.lists(st.tuples(TEXT, st.booleans()), max_size=8), max_size=5)


@given(PARTS, st.lists(TEXT, min_size=1, max_size=3))
@settings(max_examples=80, deadline=None)
def test_a_merged_index_is_a_fresh_index(parts: list[list[tuple[str, bool]]], queries: list[str]) -> None:
    """Whatever rows are kept: the same bytes as an index of the kept texts, and so the same scores."""
    texts = [[text for text, _ in part] for part in parts]
    masks = [np.array([kept for _, kept in part], bool) for part in parts]
    merged = merge_sealed([(built_at_once(part), mask) for part, mask in zip(texts, masks)])
    fresh = built_at_once(kept_of(texts, masks))
    for query in queries:
        assert scores_of(merged, query) == scores_of(fresh, query)
    with tempfile.TemporaryDirectory() as name:
        assert_same(merged, fresh, Path(name))


@pytest.mark.slow
def test_real_indexes_merge(tmp_path: Path, shared_data: Path) -> None:
    """Three indexes, one of them mapped from disk and larger than one slice, score real questions like a fresh one."""
    abstracts = read_texts(shared_data / "scifact", limit=2500)
    sentences = read_texts(shared_data / "squad-sent", limit=1000)
    texts = [abstracts, sentences[:500], sentences[500:]]
    rng = np.random.default_rng(7)
    masks = [rng.random(len(part)) < share for part, share in zip(texts, (0.7, 0.2, 1.0))]
    saved(built_at_once(abstracts), tmp_path / "part")
    parts = [SealedLexical.load(tmp_path / "part"), built_at_once(texts[1]), built_at_once(texts[2])]
    assert len(parts[0].rows) > SLICE_POSTINGS
    merged = merge_sealed(list(zip(parts, masks)))
    fresh = built_at_once(kept_of(texts, masks))
    for query in read_texts(shared_data / "squad-sent", file="queries.jsonl.gz", limit=50):
        assert scores_of(merged, query) == scores_of(fresh, query)
    assert_same(merged, fresh, tmp_path)


@pytest.mark.parametrize("work", ["seal", "merge"])
def test_sealing_and_merging_can_be_ended(work: str) -> None:
    """They ask between steps, often enough, whether to go on, and end at the first no."""
    texts = [" ".join(f"word{at * 8 + n}" for n in range(8)) for at in range(500)]
    growing = GrowingLexical()
    for text in texts:
        growing.add(text)
    sealed = growing.seal(len(texts))

    def run(on_step: OnStep) -> object:
        if work == "seal":
            return growing.seal(len(texts), on_step)
        return merge_sealed([(sealed, np.ones(len(texts), bool))] * 2, on_step)

    asked = count_calls(run)
    assert asked >= 4000 // SEALED_AT_ONCE
    for last in (1, asked // 2, asked):
        with pytest.raises(NotReady, match="enough"):
            run(ending_at(last))


def count_calls(run: Callable[[OnStep], object]) -> int:
    calls: list[None] = []
    run(lambda: calls.append(None))
    return len(calls)


def ending_at(call: int) -> OnStep:
    calls = iter(range(1, call))

    def on_step() -> None:
        if next(calls, None) is None:
            raise NotReady("enough")

    return on_step
