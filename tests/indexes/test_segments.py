"""Deltas become segments and segments become larger ones, while passages come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from indexes.base.errors import NotReady
from indexes.base.masks import pack_flags
from indexes.base.model import Floats, IndexOptions, NewPassage, Upsert
from indexes.base.work import OnStep
from indexes.collection.collection import Collection
from indexes.dense.codes import Codes, rescored_for
from indexes.dense.vectors import StoredVectors
from indexes.filters.grammar import parse_filter
from indexes.parts import delta
from indexes.parts.memory import serving_bytes
from indexes.parts.part import scan
from indexes.parts.query import Query
from indexes.parts.segment import Segment
from indexes.parts.visible import Visible
from indexes.rebuild.builder import Rebuild
from tests.support.vectors import World, delete, fill, found_ids, make_collection, rebuild

WORLD = World(seed=3)
TUNING = IndexOptions(delta_passages_max=64, segments_max=0)
CODED = IndexOptions(delta_passages_max=4096, segments_max=0)


def sizes(collection: Collection) -> list[int]:
    return [v.part.size for v in collection.snapshot.parts if isinstance(v.part, Segment)]


def exact_share(collection: Collection, queries: Floats, k: int = 10) -> float:
    """Recall of dense search against the log's own vectors."""
    shares = []
    for query, (truth, _) in zip(queries, collection.exact(queries, k), strict=True):
        found = collection.snapshot.dense(query, k).ranking.ids
        shares.append(np.isin(truth, found).mean())
    return float(np.mean(shares))


def test_what_is_new_joins_the_segment_before_it(tmp_path: Path) -> None:
    """Two at a time, until that one holds sixteen deltas; then another begins. Passages keep the order of their ids."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    fill(collection, WORLD, range(1))
    seen = []
    for sealed in range(19):
        fill(collection, WORLD, range(1 + 64 * sealed, 65 + 64 * sealed))
        collection.settle()
        seen.append([size // 64 for size in sizes(collection)])
    assert seen[:5] == [[1], [1, 1], [3], [3, 1], [5]]
    assert seen[13:] == [[13, 1], [15], [15, 1], [16, 1], [16, 1, 1], [16, 3]]
    ids = np.concatenate([v.part.ids_of(np.arange(v.part.size)) for v in collection.snapshot.parts])
    assert (np.diff(ids) == 1).all()
    assert exact_share(collection, WORLD.queries(40)) >= 0.99
    collection.close()


def test_a_few_long_texts_are_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory goes by their terms, not by their number: overwritten ones leave it with the segment."""
    monkeypatch.setattr(delta, "POSTINGS_MAX", 1000)
    collection = make_collection(tmp_path / "c", options=IndexOptions(delta_passages_max=100))
    text = " ".join(f"word{number}" for number in range(400))
    for version in range(9):
        passage = NewPassage(0, len(text), 1, WORLD.vector(version))
        collection.write([Upsert("same", f"{text} version{version}", "", {}, (passage,))]).result()
    collection.settle()
    assert any(isinstance(visible.part, Segment) for visible in collection.snapshot.parts)
    assert collection.snapshot.live == 1
    collection.close()


def test_merged_segments_leave_the_dead_behind(tmp_path: Path) -> None:
    """What was deleted before a merge is in no index any more; scores, filters and texts of the rest are as before."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    fill(collection, WORLD, range(2 * 64 + 1))
    collection.settle()
    assert sizes(collection) == [64, 64]
    delete(collection, range(0, 100, 2))
    text = WORLD.text(1, 0)
    before = collection.snapshot.lexical(text, 20)
    fill(collection, WORLD, range(129, 3 * 64 + 1))
    collection.settle()
    assert sizes(collection) == [3 * 64 - 50]
    assert collection.snapshot.dead == 0
    delete(collection, range(129, 3 * 64 + 1))
    after = collection.snapshot.lexical(text, 20)
    assert after.ids.tolist() == before.ids.tolist()
    np.testing.assert_allclose(after.scores, before.scores, rtol=1e-5)
    assert collection.snapshot.live == 129 - 50
    collection.close()


def test_deletions_during_a_merge_hold(tmp_path: Path) -> None:
    """A passage deleted after a merge began is hidden in its result, and counted out of BM25."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    fill(collection, WORLD, range(4 * 64))
    collection.settle()
    # The merge by itself is over; repeat one by hand, with deletions between its beginning and its end.
    collection = reopened(collection)
    sources = [v for v in collection.snapshot.parts if isinstance(v.part, Segment)]
    merged = Segment.merged(sources)
    delete(collection, range(10, 60))
    assert collection._writer.call(lambda: collection._assembly.put_merged(sources, merged)).result()
    collection._writer.call(collection._publish).result()
    assert collection.snapshot.live == 206
    assert collection.snapshot.dead == 50
    for number in range(0, 100, 3):
        found = found_ids(collection, WORLD.vector(number, 0, 0), 1)
        assert (found == [f"d{number}"]) == (not 10 <= number < 60)
    statistics = collection.snapshot.statistics()
    assert statistics.passages == 206
    assert statistics.length == 206 * 15
    collection.close()


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """5,000 passages: one large enough for codes, some of them dead, and the rest in the delta."""
    collection = make_collection(tmp_path_factory.mktemp("coded") / "c", options=CODED)
    fill(collection, WORLD, range(5000), batch=1000)
    collection.settle()
    delete(collection, range(0, 4000, 9))
    assert sizes(collection) == [4096]
    yield collection
    collection.close()


def test_before_the_first_rebuild_no_recall_is_stated(coded: Collection) -> None:
    """Passages in segments are searched by codes, and only a rebuild measures what is found."""
    info = coded.info()
    assert (info.generation, info.segments > 0) == (0, True)
    assert (info.recall, info.recall_evidence) == ({}, None)


def test_a_deeper_search_rescores_more() -> None:
    """At least 200, and eight for each rank, as docs/design/segments.md says."""
    assert [rescored_for(depth) for depth in (1, 25, 26, 100)] == [200, 200, 208, 800]


@pytest.mark.parametrize("depth", [1, 10, 100])
def test_codes_find_what_an_exact_search_finds(coded: Collection, depth: int) -> None:
    """Of a segment that is searched by its codes, at every depth, in the same order and with exact scores."""
    segment = segment_of(coded)
    shares = []
    for query in WORLD.queries(30):
        assert segment._promising(query, rescored_for(depth), None, segment.size) is not None
        rows, scores = segment.nearest(query, depth, None, 0)
        shares.append(np.isin(scan(segment, query, depth, None)[0], rows).mean())
        assert (np.diff(scores) <= 0).all()
        np.testing.assert_allclose(scores, segment.vectors.scores(rows, query), rtol=1e-5)
    assert np.mean(shares) >= 0.985


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("scan_max", [0, 2000])
def test_codes_under_filters(coded: Collection, share: float, scan_max: int) -> None:
    """Only allowed rows, as many as were asked for, and nearly always the best of them."""
    segment = segment_of(coded)
    flags = np.random.default_rng(5).random(segment.size) < share
    allowed = pack_flags(flags)
    shares = []
    for query in WORLD.queries(30):
        rows, _ = segment.nearest(query, 10, allowed, scan_max)
        assert len(rows) == 10
        assert flags[rows].all()
        shares.append(np.isin(scan(segment, query, 10, allowed)[0], rows).mean())
    assert np.mean(shares) >= 0.99


def test_codes_where_a_filter_goes_against_the_query(coded: Collection) -> None:
    """What is allowed lies far from the query: no code of it is among the promising ones, and all is found."""
    segment = segment_of(coded)
    query = WORLD.queries(1)[0]
    far = np.argsort(segment.vectors.scores(np.arange(segment.size), query))[: segment.size // 2]
    flags = np.zeros(segment.size, bool)
    flags[far] = True
    rows, _ = segment.nearest(query, 10, pack_flags(flags), 0)
    assert rows.tolist() == far[::-1][:10].tolist()


def test_the_dead_of_a_coded_segment_are_left_out(coded: Collection) -> None:
    """By a collection's search, and the place of each is taken by one that lives."""
    for number in range(0, 300, 9):
        found = found_ids(coded, WORLD.vector(number, 0, 0), 10)
        assert len(found) == 10
        assert f"d{number}" not in found
    assert exact_share(coded, WORLD.queries(40)) >= 0.99


@pytest.mark.parametrize("dimensions", [1, 7, 30])
def test_codes_of_vectors_that_are_alike(dimensions: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Of any number of dimensions: there is nothing to cluster, each is as near as the next, and nothing is said."""
    vectors = StoredVectors.allocate(2000, dimensions)
    vectors.halves[:] = 0
    vectors.halves[:, 0] = 1
    query = np.eye(1, dimensions, dtype=np.float32)[0]
    rows = Codes.of(vectors, lambda: None).candidates(query, 200)
    assert len(np.unique(rows)) == 200
    assert vectors.best(rows, query, 10)[1].tolist() == [1.0] * 10
    assert capfd.readouterr() == ("", "")


def test_codes_are_small(coded: Collection) -> None:
    """Half a byte for each sub-vector, beside vectors of two bytes a dimension."""
    segment = segment_of(coded)
    foretold = serving_bytes(0, 0, 0, segment.size, WORLD.dimensions)
    assert segment.tier_bytes()["hot"] == pytest.approx(foretold, rel=0.02)


def segment_of(collection: Collection) -> Segment:
    return next(v.part for v in collection.snapshot.parts if isinstance(v.part, Segment))


def reopened(collection: Collection) -> Collection:
    collection.close()
    again = Collection(collection.folder, collection.options)
    again.settle()
    return again


@pytest.mark.slow
def test_no_merge_crosses_a_build(tmp_path: Path) -> None:
    """Segments before and after the beginning of a build stay apart, so that the generation can take their place."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    fill(collection, WORLD, range(2 * 64))
    collection.settle()
    request = collection.begin_build(hot_capacity=1000)
    fill(collection, WORLD, range(128, 128 + 64 + 1))
    collection.settle()
    assert sizes(collection) == [128, 64]
    fill(collection, WORLD, range(193, 128 + 3 * 64 + 1))
    collection.settle()
    assert sizes(collection) == [128, 192]
    collection.adopt(Rebuild(request, timeout_s=60).run(lambda *_: None))
    assert sizes(collection) == [192]
    assert collection.snapshot.live == 321
    assert exact_share(collection, WORLD.queries(20)) >= 0.99
    collection.close()


def test_all_of_a_merge_dead(tmp_path: Path) -> None:
    """Segments with nothing alive merge into none."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    fill(collection, WORLD, range(3 * 64))
    delete(collection, range(3 * 64))
    fill(collection, WORLD, range(1000, 1001))  # ends the third delta, and with it begins the merge
    collection.settle()
    assert sizes(collection) == []
    assert [v.part.size for v in collection.snapshot.parts] == [1]
    assert found_ids(collection, WORLD.queries(1)[0], 10) == ["d1000"]
    collection.close()


def test_closing_ends_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A merge under way stops at its next block of rows, so that closing does not wait for minutes."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    merged = Segment.merged
    begun, ended, given_up = threading.Event(), threading.Event(), threading.Event()

    def of_blocks_without_end(sources: Sequence[Visible], *, on_step: OnStep) -> Segment:
        def block_after_block() -> None:
            begun.set()
            while not given_up.is_set():
                on_step()
                time.sleep(0.001)

        try:
            return merged(sources, on_step=block_after_block)
        except NotReady:
            ended.set()
            raise

    monkeypatch.setattr(Segment, "merged", of_blocks_without_end)
    with ThreadPoolExecutor(1) as pool:
        fill(collection, WORLD, range(4 * 64 + 1))
        assert begun.wait(60)
        try:
            pool.submit(collection.close).result(60)
        finally:
            given_up.set()
    assert ended.is_set()
    assert "failed" not in caplog.text


def test_a_seal_that_fails_costs_nothing_but_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, its delta is searched exactly as before, and later deltas are sealed."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    seal, failures = Segment.seal, iter([MemoryError("no room")])

    def fails_once(*args: object, **options: object) -> Segment:
        for error in failures:
            raise error
        return seal(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Segment, "seal", fails_once)
    fill(collection, WORLD, range(2 * 64 + 1))
    collection.settle()
    assert "sealing a segment of c failed" in caplog.text
    assert sizes(collection) == [64]
    assert collection.snapshot.counts() == {"delta": 65, "hot": 64, "cold": 0}
    assert exact_share(collection, WORLD.queries(20)) >= 0.99
    collection.close()


def test_the_search_does_not_change_when_segments_merge(tmp_path: Path) -> None:
    """A snapshot taken before a merge answers as before, after it."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    fill(collection, WORLD, range(4 * 64 - 1))
    old = collection.snapshot
    query = WORLD.queries(1)[0]
    before = old.dense(query, 10).ranking
    fill(collection, WORLD, range(255, 300))
    collection.settle()
    assert old.dense(query, 10).ranking.ids.tolist() == before.ids.tolist()
    collection.close()


@pytest.mark.slow
def test_scores_are_those_of_the_rankings(tmp_path: Path) -> None:
    """What the rankings have found is scored without being looked up, as in a search of its own and bit for bit, in
    whatever part it is; so is what none has found."""
    collection = make_collection(tmp_path / "c", options=TUNING, hot_capacity=100)
    fill(collection, WORLD, range(600))
    rebuild(collection)
    fill(collection, WORLD, range(600, 700))  # a segment and a delta
    delete(collection, range(0, 700, 7))
    snapshot = collection.snapshot
    assert len(snapshot.parts) == 3
    for vector in WORLD.queries(5):
        query = Query(10, 40, WORLD.text(3), vector)
        searched, fresh = snapshot.prepare(query), snapshot.prepare(query)
        lexical, dense = searched.lexical(), searched.dense().ranking
        ids = np.union1d(lexical.ids, dense.ids)[::-1]
        for wanted in (ids, ids[:1], np.append(ids, collection.snapshot.newest), np.empty(0, np.int64)):
            for own, other in zip(searched.scores(wanted), fresh.scores(wanted), strict=True):
                assert own.tobytes() == other.tobytes()
        known = dict(zip(dense.ids.tolist(), dense.scores.tolist()))
        assert dict(zip(ids.tolist(), searched.scores(ids)[0].tolist())).items() >= known.items()
    collection.close()


def test_what_was_written_since_is_found_in_all_parts(tmp_path: Path) -> None:
    """After any passage, the live ones with larger ids that match, and no other; None where they are too many."""
    collection = make_collection(tmp_path / "c", options=TUNING, hot_capacity=100)
    fill(collection, WORLD, range(400))
    rebuild(collection)
    fill(collection, WORLD, range(400, 500))
    delete(collection, range(0, 500, 9))
    even = parse_filter({"type": "eq", "key": "even", "value": True}, conditions_max=10)
    snapshot = collection.snapshot
    for condition in (None, even):
        live = snapshot.matching(condition)
        prepared = snapshot.prepare(Query(10, 10, WORLD.text(3), WORLD.queries(1)[0], condition))
        for after in (0, 7, 250, 399, 400, 463, 464, 499, 500, 600):
            expected = live[live > after]
            found = prepared.newer(after, 1000)
            assert found is not None
            assert np.array_equal(np.sort(found.ids), expected)
            if len(expected):
                assert prepared.newer(after, len(expected) - 1) is None
    collection.close()
