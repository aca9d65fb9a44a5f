"""A collection through its life: written, searched, rebuilt, rolled back, opened again."""

from __future__ import annotations

import gc
import itertools
import operator
import shutil
import threading
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base import failpoints
from indexes.base.errors import Conflict, DiskFull, InvalidInput, NotFound
from indexes.base.model import Delete, IndexOptions, NewPassage, Upsert
from indexes.collection.collection import Collection
from indexes.filters.grammar import Comparison, Compound, Filter
from indexes.rebuild.builder import Rebuild, build
from tests.support.vectors import DIMENSIONS, World, delete, fill, found_ids, make_collection, rebuild

WORLD = World()
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)


def recall(collection: Collection, condition: Filter | None = None) -> float:
    queries = WORLD.queries(60)
    found = []
    for query, (ids, _) in zip(queries, collection.exact(queries, 10, condition), strict=True):
        ranking = collection.snapshot.dense(query, 10, condition).ranking
        found.append(len(set(ids.tolist()) & set(ranking.ids.tolist())) / len(ids))
    return float(np.mean(found))


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """2,000 documents, a rebuild, then 300 replaced and 100 deleted ones behind it."""
    collection = make_collection(tmp_path_factory.mktemp("data") / "rebuilt")
    fill(collection, WORLD, range(2000))
    rebuild(collection)
    fill(collection, WORLD, range(300), version=1)
    delete(collection, range(1000, 1100))
    return collection


def test_a_write_is_found_at_once(tmp_path: Path) -> None:
    """An acknowledged document is the nearest hit of its own vector."""
    collection = make_collection(tmp_path / "c")
    result = collection.write([WORLD.document(1), WORLD.document(2)]).result()
    assert (result.documents, result.passages, result.deleted) == (2, 2, 0)
    assert collection.snapshot.seq == result.seq
    assert found_ids(collection, WORLD.vector(2, 0, 0))[0] == "d2"
    collection.close()


def test_reading_back_a_long_text_can_be_ended(tmp_path: Path) -> None:
    """A start that is told to stop does not wait until it is analyzed."""
    text = "".join(chr(0xAC00 + number * 37 % 11_000) for number in range(40_000))
    with closing(make_collection(tmp_path / "c")) as collection:
        passage = NewPassage(0, len(text), 1, WORLD.vector(1))
        collection.write([Upsert("long", text, "", {}, (passage,), language="ko")]).result()

    class Ended(BaseException):
        pass

    def read(passages: int) -> None:
        raise Ended

    with pytest.raises(Ended):
        Collection(tmp_path / "c", IndexOptions(read=read))


def test_an_upsert_replaces_all_passages(tmp_path: Path) -> None:
    """Of a document with three passages, replaced by one, only the new one is found."""
    collection = make_collection(tmp_path / "c")
    collection.write([WORLD.document(1, passages=3)]).result()
    collection.write([WORLD.document(1, version=1)]).result()
    ranking = collection.snapshot.dense(WORLD.vector(1, 0, 0), 10).ranking
    assert len(ranking) == 1
    assert collection.info().documents == 1
    assert collection.document("d1").text == WORLD.text(1, 1)
    collection.close()


def test_operations_of_one_write_apply_in_order(tmp_path: Path) -> None:
    """Written, deleted and written again in one write, a document exists once, as it was last."""
    collection = make_collection(tmp_path / "c")
    collection.write(
        [WORLD.document(1), Delete("d1"), WORLD.document(1, version=2), WORLD.document(2), Delete("d2")]
    ).result()
    assert collection.document("d1").text == WORLD.text(1, 2)
    assert collection.snapshot.live == 1
    with pytest.raises(NotFound):
        collection.document("d2")
    collection.close()


def test_tiers_after_a_rebuild(rebuilt: Collection) -> None:
    """The newest passages are hot up to the capacity, the others cold, what came later is in the delta."""
    info = rebuilt.info()
    assert info.passages["cold"] + info.passages["hot"] + info.passages["delta"] == 1900
    assert info.passages["cold"] > 900
    assert info.dead_passages == 400
    assert info.recall["hot"] > 0.98
    assert info.recall["cold"] > 0.98


def test_recall_over_all_tiers(rebuilt: Collection) -> None:
    """Hot, cold and delta together find nearly all true neighbours, dead ones hidden."""
    assert recall(rebuilt) >= 0.98


def test_every_tier_is_in_the_receipt(rebuilt: Collection) -> None:
    """A search says which tiers it read, and that cold was not skipped."""
    result = rebuilt.snapshot.dense(WORLD.queries(1)[0], 10)
    assert result.tiers == ("delta", "hot", "cold")
    assert result.cold_skipped is None


def test_without_cold_passages_the_receipt_says_why(tmp_path: Path) -> None:
    """A collection that was never rebuilt skips cold for lack of one."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(10))
    result = collection.snapshot.dense(WORLD.queries(1)[0], 10)
    assert result.tiers == ("delta",)
    assert result.cold_skipped == "the collection has no cold passages"
    collection.close()


def test_scores_are_exact_in_every_tier(rebuilt: Collection) -> None:
    """A hit's score is the inner product with the vector in the log, to float16, whatever tier it came from."""
    query = WORLD.queries(1)[0]
    exact = dict(zip(*(values.tolist() for values in rebuilt.exact(query[None, :], 2000)[0]), strict=True))
    ranking = rebuilt.snapshot.dense(query, 100).ranking
    assert set(ranking.tiers.tolist()) == {0, 1, 2}
    for passage, score in zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True):
        assert score == pytest.approx(exact[passage], abs=2e-4)


def test_deleted_and_replaced_passages_never_return(rebuilt: Collection) -> None:
    """Asked with the very vectors that died, no search returns them, nor an old version."""
    for number in (0, 150, 299, 1000, 1050, 1099):
        documents = found_ids(rebuilt, WORLD.vector(number, 0, 0), 50)
        assert len(documents) == 50
        if number >= 1000:
            assert f"d{number}" not in documents
    ids = rebuilt.snapshot.dense(WORLD.vector(5, 0, 0), 200).ranking.ids.tolist()
    assert set(rebuilt.passages(ids)) == set(ids), "a snapshot holds no passage that the log has lost"


FILTERS: dict[str, tuple[Filter, int]] = {
    "half": (Comparison("eq", "even", True), 950),
    "a seventh": (Comparison("eq", "topic", "t3"), 272),
    "a range": (Comparison("lt", "number", 20), 20),
    "one": (Comparison("eq", "number", 1234), 1),
    "none": (Comparison("eq", "number", 1050), 0),
    "list": (Comparison("eq", "tags", "g1"), 633),
    "in": (Comparison("in", "topic", ["t0", "t1"]), 544),
    "not": (Comparison("ne", "even", True), 950),
    "nin": (Comparison("nin", "topic", ["t0", "t1"]), 1356),
    "and": (Compound("and", [Comparison("gte", "number", 500), Comparison("eq", "even", False)]), 700),
    "or": (Compound("or", [Comparison("lte", "number", 4), Comparison("gt", "number", 1994)]), 10),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_return_what_matches(rebuilt: Collection, name: str) -> None:
    """A filtered search finds only matches, all of them if there are few, at high recall if there are many."""
    condition, _ = FILTERS[name]
    live = [n for n in range(2000) if not 1000 <= n < 1100]
    expected = [n for n in live if matches(condition, n)]
    ids = rebuilt.snapshot.matching(condition)
    assert {rebuilt.passages([i])[i].document_id for i in ids.tolist()[:50]} <= {f"d{n}" for n in expected}
    assert len(ids) == len(expected)
    ranking = rebuilt.snapshot.dense(WORLD.queries(1)[0], 10, condition).ranking
    assert len(ranking) == min(10, len(expected))
    if expected:
        assert recall(rebuilt, condition) >= 0.97


def matches(condition: Filter, number: int) -> bool:
    """The grammar again, as plainly as can be."""
    if isinstance(condition, Compound):
        return (all if condition.type == "and" else any)(matches(part, number) for part in condition.filters)
    assert isinstance(condition, Comparison)
    value: Any = WORLD.metadata(number)[condition.key]
    bound: Any = condition.value
    have = value if isinstance(value, list) else [value]
    want = bound if isinstance(bound, list) else [bound]
    equal = any(one in want for one in have)
    if condition.type in ("eq", "in", "ne", "nin"):
        return equal == (condition.type in ("eq", "in"))
    ordered = {"lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge}[condition.type]
    return bool(ordered(value, bound))


def test_masked_search_keeps_its_recall(tmp_path: Path) -> None:
    """With exact scans ruled out, filters of half and of a seventh still find nearly all neighbours."""
    options = IndexOptions(delta_passages_max=256, segments_max=0, exact_scan_passages_max=0)
    collection = make_collection(tmp_path / "c", options=options)
    fill(collection, WORLD, range(2000))
    rebuild(collection)
    for name in ("half", "a seventh", "a range"):
        assert recall(collection, FILTERS[name][0]) >= 0.95, name
        assert len(collection.snapshot.dense(WORLD.queries(1)[0], 10, FILTERS[name][0]).ranking) == 10
    collection.close()


def test_a_filter_on_a_key_nobody_has_is_an_error(rebuilt: Collection) -> None:
    """A misspelt key is refused, and the message lists the known ones."""
    with pytest.raises(InvalidInput, match="topic"):
        rebuilt.snapshot.dense(WORLD.queries(1)[0], 10, Comparison("eq", "topik", "t1"))


def test_delete_by_filter(tmp_path: Path) -> None:
    """Deleting what matches leaves nothing that matches, and everything else."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(100))
    even = collection.snapshot.matching(Comparison("eq", "even", True))
    assert collection.delete_holding(even).result().deleted == 50
    assert collection.snapshot.live == 50
    assert not len(collection.snapshot.matching(Comparison("eq", "even", True)))
    collection.close()


@pytest.mark.slow
def test_writes_during_a_rebuild_survive_the_swap(tmp_path: Path) -> None:
    """Written and deleted between the start of a build and its adoption: found and not found after it."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(900))
    request = collection.begin_build()
    fill(collection, WORLD, range(900, 950))
    fill(collection, WORLD, range(10), version=1)
    delete(collection, range(20, 30))
    number = Rebuild(request, timeout_s=120).run(lambda *_: None)
    delete(collection, range(940, 950))
    delete(collection, range(30, 40))
    collection.adopt(number)
    assert collection.snapshot.generation == number
    assert collection.snapshot.live == 920
    assert found_ids(collection, WORLD.vector(905, 0, 0))[0] == "d905"
    assert found_ids(collection, WORLD.vector(3, 1, 0))[0] == "d3"
    for gone in (25, 35, 945):
        assert f"d{gone}" not in found_ids(collection, WORLD.vector(gone, 0, 0), 20)
    assert recall(collection) >= 0.98
    collection.close()


@pytest.mark.slow
def test_rollback_keeps_later_writes(tmp_path: Path) -> None:
    """Back on the generation before, documents written since are found and deleted ones are not."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(700))
    rebuild(collection)
    fill(collection, WORLD, range(700, 1400))
    rebuild(collection)
    delete(collection, range(50))
    assert collection.rollback().number == 1
    assert collection.snapshot.generation == 1
    assert collection.snapshot.live == 1350
    assert found_ids(collection, WORLD.vector(1300, 0, 0))[0] == "d1300"
    assert "d10" not in found_ids(collection, WORLD.vector(10, 0, 0), 20)
    assert recall(collection) >= 0.98
    with pytest.raises(Conflict):
        collection.rollback()
    collection.close()


def test_only_the_kept_generations_stay_on_disk(tmp_path: Path) -> None:
    """After three rebuilds the live generation and the one before it remain."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(20))
    for _ in range(3):
        rebuild(collection)
    assert collection.shelf.numbers() == [2, 3]
    collection.close()


def test_opening_again_gives_the_same_answers(tmp_path: Path) -> None:
    """Closed and opened, a collection with generation, segments, delta and deletions answers as before."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(800))
    rebuild(collection)
    fill(collection, WORLD, range(800, 1300))
    delete(collection, range(100, 150))
    queries = WORLD.queries(20)
    before = [collection.exact(queries, 10)[at][0].tolist() for at in range(3)]
    lexical = collection.snapshot.lexical("word1 word20 word300", 20)
    info = collection.info()
    collection.close()
    again = Collection(tmp_path / "c", TUNING)
    assert [again.exact(queries, 10)[at][0].tolist() for at in range(3)] == before
    assert np.allclose(again.snapshot.lexical("word1 word20 word300", 20).scores, lexical.scores)
    assert (again.info().seq, again.info().documents, again.snapshot.live) == (info.seq, info.documents, 1250)
    assert recall(again) >= 0.98
    again.close()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 documents and a rebuild: 600 are hot, the others cold."""
    folder = tmp_path_factory.mktemp("data") / "closed"
    with closing(make_collection(folder)) as collection:
        fill(collection, WORLD, range(1000))
        rebuild(collection)
    return folder


@pytest.mark.slow
def test_a_collection_opens_without_its_generations(closed: Path, tmp_path: Path) -> None:
    """Deleting generations/ costs time, not data."""
    shutil.copytree(closed, tmp_path / "c", ignore=shutil.ignore_patterns("generations"))
    again = Collection(tmp_path / "c", TUNING)
    assert again.snapshot.live == 1000
    assert found_ids(again, WORLD.vector(650, 0, 0))[0] == "d650"
    rebuild(again)
    assert again.snapshot.generation == 2
    again.close()


@pytest.mark.parametrize(
    "name", ["hot.hnsw", "cold.ivf", "vectors.f16", "lexical/rows.npy", "manifest.json", "ids.npy"]
)
def test_a_damaged_file_is_found_out_before_it_is_parsed(closed: Path, tmp_path: Path, name: str) -> None:
    """With one flipped byte in any file of the live generation, the log alone serves, whole."""
    shutil.copytree(closed, tmp_path / "c")
    path = tmp_path / "c" / "generations" / "000001" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    again = Collection(tmp_path / "c", TUNING)
    assert again.snapshot.generation == 0
    assert again.snapshot.live == 1000
    again.close()


def test_full_deltas_become_segments(tmp_path: Path) -> None:
    """Past the delta's capacity passages move into sealed segments, three of which become one, and stay found."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(600))
    collection.settle()
    assert collection.info().segments == 2
    fill(collection, WORLD, range(600, 1000))
    collection.settle()
    info = collection.info()
    assert info.segments == 1
    assert info.passages == {"delta": 232, "hot": 768, "cold": 0}
    assert recall(collection) >= 0.98
    delete(collection, range(200))
    assert recall(collection) >= 0.98
    collection.close()


def test_an_old_snapshot_does_not_change(tmp_path: Path) -> None:
    """A search that began before a write and a deletion sees neither."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(100))
    old = collection.snapshot
    query = WORLD.vector(150, 0, 0)
    before = old.dense(query, 10).ranking
    fill(collection, WORLD, range(100, 200))
    delete(collection, range(50))
    after = old.dense(query, 10).ranking
    assert before.ids.tolist() == after.ids.tolist()
    assert old.live == 100
    assert collection.snapshot.live == 150
    collection.close()


@pytest.mark.slow
def test_k_hits_wherever_they_are(tmp_path: Path) -> None:
    """Asked for as many as there are, or fewer, a search returns that many, over all tiers."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(950))
    rebuild(collection)
    fill(collection, WORLD, range(950, 1000))
    assert all(collection.info().passages.values())
    queries, ks = WORLD.queries(3), (1, 10, 500, 1000)
    for k, query in itertools.product(ks, queries):
        assert len(collection.snapshot.dense(query, k).ranking) == k
    delete(collection, range(990))
    for k in ks:
        assert len(collection.snapshot.dense(queries[0], k).ranking) == min(k, 10)
    collection.close()


@pytest.mark.slow
def test_equal_passages(tmp_path: Path) -> None:
    """1,500 times the same vector: all are found, and their recall is measured as what it is."""
    collection = make_collection(tmp_path / "c")
    vector = WORLD.vector(1)
    same = [Upsert(f"s{n}", "same text", "", {}, (NewPassage(0, 9, 2, vector),)) for n in range(1500)]
    collection.write(same).result()
    rebuild(collection, 400)
    for k in (10, 400, 1500):
        assert len(collection.snapshot.dense(vector, k).ranking) == k
    # The cold tier holds none of the true neighbors: of equal ones the lowest rows count, and these are hot.
    assert collection.info().recall == {"all": 1, "hot": 1, "cold_filtered": 1}
    collection.close()


@pytest.mark.parametrize("hot_capacity", [0, 10_000])
def test_nothing_to_find(tmp_path: Path, hot_capacity: int) -> None:
    """An empty collection, and one whose documents are all deleted, can be searched and rebuilt."""
    collection = make_collection(tmp_path / "c", hot_capacity=hot_capacity)
    query = WORLD.queries(1)[0]
    for numbers in (range(0), range(300)):
        fill(collection, WORLD, numbers)
        delete(collection, numbers)
        rebuild(collection)
        assert not len(collection.snapshot.dense(query, 10).ranking)
        assert not len(collection.snapshot.lexical("word1", 10))
        assert not sum(collection.info().passages.values())
    fill(collection, WORLD, range(300))
    delete(collection, range(300))
    assert not len(collection.snapshot.dense(query, 10).ranking)
    collection.close()


def test_rebuilds_are_wanted_by_rule(tmp_path: Path) -> None:
    """Many segments or many dead passages ask for a rebuild; a fresh generation does not."""
    options = IndexOptions(delta_passages_max=128, segments_max=2, dead_fraction_max=0.2)
    collection = make_collection(tmp_path / "c", options=options)
    fill(collection, WORLD, range(100))
    assert collection.wants_rebuild() is None
    fill(collection, WORLD, range(100, 600))
    collection.settle()
    assert "segments" in (collection.wants_rebuild() or "")
    rebuild(collection)
    assert collection.wants_rebuild() is None
    delete(collection, range(130))
    assert "dead" in (collection.wants_rebuild() or "")
    collection.close()


def bad(vector: np.ndarray) -> Upsert:
    return Upsert("x", "text", "", {}, (NewPassage(0, 4, 1, vector),))


def test_bad_vectors_are_refused(tmp_path: Path) -> None:
    """A wrong dimension, NaN, or another length than 1 is an error, and nothing of the write is kept."""
    collection = make_collection(tmp_path / "c")
    good = WORLD.vector(1)
    for vector in (good[:-1], good * np.float32("nan"), good * 2, np.zeros(DIMENSIONS, np.float32)):
        with pytest.raises(InvalidInput, match="vector"):
            collection.write([WORLD.document(1), bad(vector.astype(np.float32))])
    assert collection.snapshot.live == 0
    collection.close()


def test_a_build_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    """A build whose log cannot be read says why, and no draft or generation stays behind."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(20))
    request = collection.begin_build()
    broken = type(request)(
        **{**{f: getattr(request, f) for f in request.__slots__}, "collection": str(tmp_path / "no")}
    )
    with pytest.raises(Exception, match="build of generation 1 failed"):
        Rebuild(broken, timeout_s=60).run(lambda *_: None)
    assert collection.shelf.numbers() == []
    assert list((tmp_path / "c").glob("generations/.draft*")) == []
    collection.close()


def test_true_and_one_stay_apart_through_a_rebuild(tmp_path: Path) -> None:
    """Documents with `1` and with `true` under the same key, next to each other, match as before."""
    collection = make_collection(tmp_path / "c")
    flags: list[bool | int] = [1, True, 0, False]
    for number, flag in enumerate(flags):
        document = WORLD.document(number)
        collection.write([Upsert(document.id, document.text, "", {"flag": flag}, document.passages)]).result()
    for _ in range(2):
        for number, flag in enumerate(flags):
            assert collection.snapshot.matching(Comparison("eq", "flag", flag)).tolist() == [number + 1]
        rebuild(collection)
    collection.close()


def test_the_old_generation_stays_live_if_the_marker_cannot_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When CURRENT cannot be written, the adoption fails, and no later write brings the new generation in."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(50))
    rebuild(collection)
    number = build(collection.begin_build(), lambda *_: None)

    def full(number: int) -> None:
        raise DiskFull("no space left")

    monkeypatch.setattr(collection.shelf, "set_current", full)
    with pytest.raises(DiskFull):
        collection.adopt(number)
    monkeypatch.undo()
    fill(collection, WORLD, range(50, 60))
    assert collection.snapshot.generation == 1
    collection.discard(number)
    assert collection.shelf.numbers() == [1]
    assert collection.snapshot.live == 60
    collection.close()


def test_after_a_rollback_the_good_generation_is_kept(tmp_path: Path) -> None:
    """Rolled back from 2 to 1 and rebuilt, 3 is live and 1, not 2, is what a rollback goes to."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(20))
    rebuild(collection)
    rebuild(collection)
    collection.rollback()
    rebuild(collection)
    assert collection.shelf.numbers() == [1, 3]
    assert collection.rollback().number == 1
    collection.close()


def test_passages_deleted_during_a_build_do_not_hide_others(tmp_path: Path) -> None:
    """Most hot passages deleted while a build runs: those that live are found by their own vectors."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(600))
    request = collection.begin_build()

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "dense" and done == 0:
            delete(collection, range(500))

    number = Rebuild(request, timeout_s=60).run(progress)
    collection.adopt(number)
    for one in (500, 550, 599):
        assert found_ids(collection, WORLD.vector(one, 0, 0))[0] == f"d{one}"
    assert collection.snapshot.live == 100
    collection.close()


@pytest.mark.parametrize("deleted", [7, 11, 12])
def test_most_passages_are_deleted_during_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    """What no search can find is no neighbor that it missed: the build is not refused."""

    def reach(name: str) -> None:
        if name == "build.placed":
            delete(collection, range(deleted))

    monkeypatch.setattr(failpoints, "reach", reach)
    with closing(make_collection(tmp_path / "c")) as collection:
        fill(collection, WORLD, range(12))
        assert rebuild(collection).manifest.recall.get("hot", 1.0) == 1.0
        found = found_ids(collection, WORLD.vector(11, 0, 0))
        assert sorted(found) == sorted(f"d{number}" for number in range(deleted, 12))


def test_delete_by_filter_spares_what_no_longer_matches(tmp_path: Path) -> None:
    """An update acknowledged before the deletion has its turn counts: what it made not match, stays."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(4))
    gate = threading.Event()
    blocked = collection._writer.call(gate.wait)
    document = WORLD.document(0)
    updated = collection.write([Upsert("d0", document.text, "", {"even": False}, document.passages)])
    deleted = collection.delete_holding(collection.snapshot.matching(Comparison("eq", "even", True)))
    gate.set()
    blocked.result()
    updated.result()
    assert deleted.result().deleted == 1
    assert collection.document("d0").metadata == {"even": False}
    collection.close()


def test_an_old_snapshot_keeps_its_words(tmp_path: Path) -> None:
    """A search that began before the only document with a word was replaced still finds it by that word."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(5))
    vector = WORLD.vector(1)

    def write(text: str) -> None:
        passage = NewPassage(0, len(text), 2, vector)
        collection.write([Upsert("z", text, "", {}, (passage,))]).result()

    write("zebra stripes")
    delete(collection, range(1))  # something is dead already, so that its words are being counted
    old = collection.snapshot
    write("zebra crossing")
    assert len(old.lexical("zebra", 10)) == 1
    assert len(collection.snapshot.lexical("zebra", 10)) == 1
    collection.close()


def test_metadata_that_no_index_can_hold(tmp_path: Path) -> None:
    """A number beyond 64 bits is refused before it is written: once in the log, nothing could open it again."""
    collection = make_collection(tmp_path / "c")
    document = replace(WORLD.document(1), metadata={"x": 2**70})
    with pytest.raises(InvalidInput, match="64 bits") as refused:
        collection.write([document])
    assert refused.value.param == "metadata"
    assert collection.log.position().seq == 0
    collection.close()


def test_the_live_generation_is_never_cleared_away(tmp_path: Path) -> None:
    """Also where its manifest was damaged while it serves: the memory maps of its files are in use."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(20))
    rebuild(collection)
    manifest = collection.shelf.path(1) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    collection._prune(before=0)
    assert collection.shelf.numbers() == [1]
    collection.close()


def test_a_closed_collection_lets_its_indexes_go(tmp_path: Path) -> None:
    """Also where the garbage collector looks at nothing that was there before, as in a service."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(300))
    part = weakref.ref(collection.snapshot.parts[0].part)
    gc.collect()
    gc.freeze()
    try:
        collection.close()
        assert part() is None
    finally:
        gc.unfreeze()
