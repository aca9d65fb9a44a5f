"""What every shard promises, for the one in this process and for one whose every value travels as bytes."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from indexes.base.errors import InvalidInput
from indexes.base.model import Delete, NewPassage, Ranking, Upsert
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.filters.grammar import parse_filter
from indexes.parts.query import Query
from indexes.reading.facets import FacetQuery
from indexes.reading.surroundings import Reach
from retrieval.search.shard import Ask, Follow, Later, LocalShard, Shard, ValuesQuery, What, run_at_once
from retrieval.search.stopwatch import Stopwatch
from tests.support.encoded_shard import EncodedShard
from tests.support.vectors import WORDS, World, delete, fill, make_collection

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
WORLD = World()
WORDS_ASKED = " ".join(WORDS[:30:3])
VECTOR = WORLD.queries(1)[0]
HYBRID = Query(10, 40, WORDS_ASKED, VECTOR, language="en")
EVEN = parse_filter({"type": "eq", "key": "even", "value": True}, conditions_max=1)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """400 documents in sealed segments and the delta, every tenth one deleted, one of five passages, and a word."""
    made = make_collection(tmp_path_factory.mktemp("shard") / "c")
    fill(made, WORLD, range(400))
    made.write([WORLD.document(1000, passages=5)]).result()
    word = (NewPassage(0, 10, 1, WORLD.vector(2000, 0, 0)),)
    made.write([Upsert("d2000", "kubernetes", "", WORLD.metadata(2000), word)]).result()
    made.write([Delete(f"d{number}") for number in range(0, 400, 10)]).result()
    yield made
    made.close()


@pytest.fixture(params=[LocalShard, EncodedShard])
def shard(request: pytest.FixtureRequest, collection: Collection) -> LocalShard:
    made: LocalShard = request.param(collection, collection.snapshot, Stopwatch())
    return made


def run(method: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
    return run_at_once(partial(method, *arguments))


def test_everything_travels() -> None:
    """The second implementation encodes every method of the seam."""
    methods = {name for name, one in vars(Shard).items() if inspect.iscoroutinefunction(one)}
    assert methods
    assert methods <= set(vars(EncodedShard))


def test_candidates_of_a_hybrid_search_have_both_scores(shard: LocalShard) -> None:
    """Those that one searcher did not find too; and each is as the collection ranks it alone."""
    found = run(shard.search, Ask(HYBRID)).candidates
    assert not np.isnan(found.dense).any()
    assert not np.isnan(found.lexical).any()
    alone = shard.snapshot.dense(VECTOR, 40).ranking
    ranked = found.dense_ranks >= 0
    assert found.ids[ranked].tolist() == alone.ids.tolist()
    assert found.dense[ranked].tolist() == alone.scores.tolist()
    assert found.searched == shard.snapshot.tiers


def test_what_is_asked_for_is_brought_along(shard: LocalShard, collection: Collection) -> None:
    """Values by candidate, terms to highlight, and the state searched; nothing of it unasked."""
    values = ValuesQuery("number", "sort[0].key"), ValuesQuery("tags", "sort[1].key")
    found = run(shard.search, Ask(HYBRID, values=values, highlight="word3 sailing", grounds=True))
    stored = collection.passages(found.candidates.ids.tolist())
    held = [stored[one].metadata for one in found.candidates.ids.tolist()]
    assert [list(one) for one in found.values[0]] == [[one["number"]] for one in held]
    assert [sorted(one) for one in found.values[1]] == [sorted(one["tags"]) for one in held]
    assert {"word3", "sail"} <= found.terms
    assert found.grounds is not None
    assert (found.grounds.seq, found.grounds.newest) == (shard.seq, collection.snapshot.newest)
    plain = run(type(shard)(collection, collection.snapshot, Stopwatch()).search, Ask(HYBRID))
    assert (plain.values, plain.terms, plain.grounds) == ([], frozenset(), None)
    again = run(shard.search, Ask(HYBRID, grounds=True)).grounds
    assert again is not None
    assert again.scoring == found.grounds.scoring


def test_a_filter_travels(shard: LocalShard, collection: Collection) -> None:
    """A filter of any shape works. One that nothing can satisfy is refused, as are values that no passage has."""
    condition = parse_filter(
        {
            "type": "or",
            "filters": [
                {"type": "and", "filters": [{"type": "eq", "key": "even", "value": True}]},
                {"type": "not", "filter": {"type": "exists", "key": "topic"}},
                {"type": "in", "key": "topic", "value": ["t1", "t2"]},
            ],
        },
        conditions_max=9,
    )
    found = run(shard.search, Ask(Query(10, 40, vector=VECTOR, condition=condition))).candidates
    held = [one.metadata for one in collection.passages(found.ids.tolist()).values()]
    assert len(held) == 40
    assert all(one["even"] or one["topic"] in {"t1", "t2"} for one in held)
    absent = parse_filter({"type": "eq", "key": "evn", "value": True}, conditions_max=1)
    with pytest.raises(InvalidInput, match="evn"):
        run(fresh(shard).search, Ask(Query(10, 40, vector=VECTOR, condition=absent)))
    with pytest.raises(InvalidInput) as caught:
        run(fresh(shard).search, Ask(HYBRID, values=(ValuesQuery("topic", "boosts[0].key", ("number",)),)))
    assert caught.value.param == "boosts[0].key"


def fresh(shard: LocalShard) -> LocalShard:
    return type(shard)(shard.collection, shard.snapshot, Stopwatch(), WorkBudget())


def test_a_misspelt_word_is_corrected(shard: LocalShard) -> None:
    """The replacement comes back, and is found."""
    found = run(shard.search, Ask(Query(10, 40, "kubrenetes", typos=True, language="en")))
    assert set(found.corrected) == {"kubrenetes"}
    assert found.typos_whole
    assert len(found.candidates)


def test_a_known_ranking_takes_the_place_of_the_search(shard: LocalShard, collection: Collection) -> None:
    """As an exact scan found it, with the tiers of the snapshot."""
    [(ids, scores)] = collection.exact(VECTOR[None], 7)
    known = Ranking(ids, scores, np.zeros(7, np.int8))
    found = run(shard.search, Ask(Query(7, 7, vector=VECTOR), known)).candidates
    assert found.ids.tolist() == ids.tolist()
    assert found.dense.tolist() == scores.tolist()
    assert found.tiers.tolist() == shard.snapshot.tiers_of(ids).tolist()


def test_reading_passages(shard: LocalShard, collection: Collection) -> None:
    """Deleted ones are absent; vectors are as they were written; hits are counted when asked."""
    ids = run(shard.search, Ask(HYBRID)).candidates.ids[:3].tolist()
    gone = 10**9
    found = run(shard.fetch, [*ids, gone], What(passages=True, vectors=True))
    assert found.passages == collection.passages(ids)
    assert found.vectors is not None
    for at, one in enumerate(ids):
        number = int(found.passages[one].document_id[1:])
        assert found.vectors[at] @ WORLD.vector(number, 0, found.passages[one].ordinal) > 0.99
    assert not found.vectors[3].any()
    document = collection.log.vectors_of_document("d1000")
    assert document is not None
    middle = int(document[0][2])
    around = run(shard.fetch, [middle, gone], What(reach=Reach(1, 1, 10_000))).around
    assert list(around) == [middle]
    assert (around[middle].first, around[middle].last) == (1, 3)
    collection.hits.fade()
    before = collection.hits.most()[1].sum()
    run(shard.fetch, ids, What(hits=True))
    run(shard.fetch, ids, What(passages=True))
    assert collection.hits.most()[1].sum() == before + 3


def test_counting_facets(shard: LocalShard) -> None:
    """Values and ranges, with a filter; a key that no document has is a fault."""
    values, ranges = run(shard.facets, EVEN, [FacetQuery("topic"), FacetQuery("number", (100, 200))])
    assert sum(count for _, count in values.values) == values.documents == ranges.documents
    assert [count for _, count in ranges.ranges] == [40, 40, values.documents - 80]
    (unknown,) = run(shard.facets, None, [FacetQuery("tpic")])
    assert "tpic" in (unknown.fault or "")


def test_examples(shard: LocalShard) -> None:
    """A document's passages and their mean; None for one that is not there."""
    known, deleted = run(shard.examples, ["d1000", "d10"])
    assert deleted is None
    assert known is not None
    assert len(known.passages) == 5
    assert np.allclose(known.mean, np.mean([WORLD.vector(1000, 0, at) for at in range(5)], axis=0), atol=1e-6)
    assert known.metadata == WORLD.metadata(1000)


def test_what_was_written_since(shard: LocalShard, tmp_path: Path) -> None:
    """The passages since a search, with both scores; nothing if one that it rests on is gone, if they are too many, or
    if the query scores differently."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(64))

    def now() -> LocalShard:
        return type(shard)(collection, collection.snapshot, Stopwatch())

    answer = run(now().search, Ask(HYBRID, grounds=True))
    state, ids = answer.grounds, answer.candidates.ids
    assert state is not None
    none = np.empty(0, np.int64)
    asked = Later(HYBRID, state.scoring, state.newest, 10, ids, none)
    unchanged = run(now().later, asked).candidates
    assert unchanged is not None
    assert len(unchanged) == 0
    collection.write([WORLD.document(500)]).result()
    later = run(now().later, asked)
    assert later.newest > state.newest
    if later.candidates is not None:  # the mean length may have moved
        assert len(later.candidates) == 1
        assert not np.isnan(later.candidates.dense).any()
    scoring = run(now().search, Ask(HYBRID, grounds=True)).grounds
    assert scoring is not None
    since = Later(HYBRID, scoring.scoring, state.newest, 10, ids, none)
    found = run(now().later, since).candidates
    assert found is not None
    assert found.ids.tolist() == [later.newest]
    for changed in (
        Later(HYBRID, b"another", state.newest, 10, ids, none),
        Later(HYBRID, scoring.scoring, state.newest, 0, ids, none),
        Later(HYBRID, scoring.scoring, state.newest, 10, none, ids[:1]),
    ):
        assert run(now().later, changed).candidates is None
    stored = collection.passages([int(ids[0])])
    collection.write([Delete(stored[int(ids[0])].document_id)]).result()
    assert run(now().later, since).candidates is None
    collection.close()


def test_a_scan_reads_every_vector(shard: LocalShard, collection: Collection) -> None:
    queries = WORLD.queries(3)
    alone = collection.exact(queries, 20, EVEN)
    for found, (ids, scores) in zip(run(shard.scan, queries, 20, EVEN), alone, strict=True):
        assert found.ids.tolist() == ids.tolist()
        assert found.scores.tolist() == scores.tolist()


def test_following_passages_that_are_no_hits(shard: LocalShard, collection: Collection) -> None:
    """Where they stand among all passages, which words they hold, and what the filter has against them."""
    numbers = np.array(collection.log.passages_of("d7"), np.int64)
    conditions = [{"type": "eq", "key": "even", "value": True}, {"type": "exists", "key": "number"}]
    condition = {"type": "and", "filters": conditions}
    found = run(shard.follow, Follow(HYBRID, numbers, numbers[:0], condition, whole=True))
    (standing,) = found.standings
    exact = collection.exact(VECTOR[None, :], 400)[0][0].tolist()
    assert standing.dense_rank == exact.index(standing.id) + 1
    assert found.passages[standing.id].document_id == "d7"
    assert [one.where for one in found.unmet] == ["filter.filters[0]"]
    assert found.relaxed == {**condition, "filters": conditions[1:]}
    shown = run(shard.follow, Follow(HYBRID, numbers, numbers, condition, whole=False))
    assert shown.standings == found.standings
    assert not shown.unmet


def test_terms_that_only_others_of_the_passages_hold(shard: LocalShard, collection: Collection) -> None:
    """Following passages tells which of them hold the terms that the best ones lack."""
    long, short = (list(collection.log.passages_of(document)) for document in ("d1000", "d2000"))
    numbers, word = np.array([*long, *short], np.int64), collection.passages(long)[long[0]].text.split()[0]
    query = Query(10, 40, f"{word} kubernetes absent", VECTOR, language="en")
    found = run(shard.follow, Follow(query, numbers, numbers[:0], None, whole=True))
    assert {one.id for one in found.standings} <= {*long, *short}
    held = {term: ids.tolist() for term, ids in found.holding.items()}
    assert held.pop(word, long) == long  # lacked only if the best passage is not of the long document
    assert held == {"kubernet": short}
    shown = run(shard.follow, Follow(query, numbers, numbers, None, whole=False))
    assert not shown.holding


def test_the_statistics_of_several_shards_score_like_one(shard: LocalShard, tmp_path: Path) -> None:
    """Each half, given the sum of what both count, scores its passages as the whole does, bit for bit; without that,
    differently."""
    whole, *halves = [make_collection(tmp_path / name) for name in ("whole", "first", "second")]
    fill(whole, WORLD, range(300))
    delete(whole, range(20, 50))
    fill(halves[0], WORLD, range(120))
    delete(halves[0], range(20, 50))
    fill(halves[1], WORLD, range(120, 300))

    def of(collection: Collection) -> LocalShard:
        return type(shard)(collection, collection.snapshot, Stopwatch())

    def scores(collection: Collection, query: Query) -> dict[str, float]:
        found = run(of(collection).search, Ask(query)).candidates
        stored = collection.passages(found.ids.tolist())
        return {
            stored[one].document_id: score
            for one, score in zip(found.ids.tolist(), found.lexical.tolist(), strict=True)
        }

    query = Query(10, 400, WORDS_ASKED, language="en")
    counts = [run(of(half).statistics, query) for half in halves]
    together = counts[0].plus(counts[1])
    assert together == run(of(whole).statistics, query)
    shared = Query(10, 400, WORDS_ASKED, language="en", statistics=together)
    expected = scores(whole, query)
    assert scores(halves[0], shared) | scores(halves[1], shared) == expected
    assert scores(halves[0], query) | scores(halves[1], query) != expected
    for collection in (whole, *halves):
        collection.close()


def test_a_search_that_waits_needs_a_loop() -> None:
    """`run_at_once` says so instead of leaving it half done."""

    class Waits:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def wait() -> None:
        await Waits()

    with pytest.raises(RuntimeError, match="event loop"):
        run_at_once(wait)


PIPELINE_TESTS = ["deepening", "survival", "cache_sharing"]


@pytest.mark.slow
def test_the_pipeline_passes_its_own_tests_with_values_that_travel() -> None:
    """In a run of their own, with the second implementation in the place of the first. A few histories are enough here:
    each makes every kind of search."""
    tests = [f"tests/retrieval/test_{name}.py" for name in PIPELINE_TESTS]
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.support.values_travel"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env={**os.environ, "NEARLINE_TEST_HISTORIES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
