"""Any history of writes, deletions, rebuilds, swaps, rollbacks and restarts, against a dict.

5 histories of 50 steps in CI; `make torture` takes NEARLINE_TORTURE_STEPS (10,000).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rank_bm25 import BM25Okapi

from indexes.base.errors import Conflict
from indexes.base.model import Bm25, Delete, Floats, IndexOptions
from indexes.collection.collection import Collection
from indexes.filters.grammar import Comparison
from indexes.lexical.analysis import query_terms, terms
from indexes.lexical.bm25 import Statistics, round_count
from indexes.log.reader import searchable_text
from indexes.rebuild.builder import BuildRequest, build
from tests.support.inspection import consistent
from tests.support.vectors import make_collection
from tests.support.versions import WORLD, document

STEPS = 50
NUMBERS = 250
# Small parts, so that a short history has them all; few passages are scanned, so that graphs and lists are searched.
TUNING = IndexOptions(delta_passages_max=48, segments_max=0, exact_scan_passages_max=10, recall_target=0.95)
HOT_CAPACITY = 60
TIE = 2e-3  # float16 storage may move a score by this
RECALL_MIN = 0.6  # of one query; the mean over a build is held elsewhere

SOME = st.integers(0, NUMBERS - 1)
BLOCK = st.builds(lambda first, count: range(first, min(first + count, NUMBERS)), SOME, st.integers(1, 100))
DEPTH = st.integers(1, 40)


class Histories(RuleBasedStateMachine):
    """`versions` is the dict: the version of each live document."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="nearline-histories-"))
        self.collection: Collection
        self.versions: dict[int, int] = {}
        self.last_version = 0
        self.pending: BuildRequest | None = None

    @initialize(filled=st.booleans())
    def create(self, filled: bool) -> None:
        """Empty, or with enough documents for a cold tier: short histories seldom come to that by themselves."""
        self.collection = make_collection(
            self.folder / "c", options=TUNING, hot_capacity=HOT_CAPACITY, language="en"
        )
        if filled:
            self.upsert(range(NUMBERS))

    def teardown(self) -> None:
        self.collection.close()
        shutil.rmtree(self.folder)

    # -- changes

    @rule(numbers=BLOCK)
    def upsert(self, numbers: range) -> None:
        self.last_version += 1
        operations = [document(number, self.last_version) for number in numbers]
        assert self.collection.write(operations).result().documents == len(numbers)
        self.versions |= dict.fromkeys(numbers, self.last_version)

    @rule(number=SOME)
    def upsert_twice_in_one_write(self, number: int) -> None:
        self.last_version += 2
        versions = (self.last_version - 1, self.last_version)
        self.collection.write([document(number, version) for version in versions]).result()
        self.versions[number] = self.last_version

    @rule(numbers=BLOCK)
    def delete(self, numbers: range) -> None:
        deleted = self.collection.write([Delete(f"d{number}") for number in numbers]).result().deleted
        assert deleted == sum(self.versions.pop(number, None) is not None for number in numbers)

    @precondition(lambda self: self.versions)
    @rule(topic=st.integers(0, 6))
    def delete_by_filter(self, topic: int) -> None:
        if not self._key_is_known():
            return
        matching = [number for number in self.versions if number % 7 == topic]
        condition = Comparison("eq", "topic", f"t{topic}")
        found = self.collection.snapshot.matching(condition)
        assert self.collection.delete_holding(found).result().deleted == len(matching)
        for number in matching:
            del self.versions[number]

    @precondition(lambda self: self.pending is None)
    @rule()
    def begin_to_rebuild(self) -> None:
        self.pending = self.collection.begin_build()

    @precondition(lambda self: self.pending is not None)
    @rule()
    def finish_the_rebuild(self) -> None:
        assert self.pending is not None
        build(self.pending, lambda *_: None)
        self.collection.adopt(self.pending.number)
        assert self.collection.snapshot.generation == self.pending.number
        self.pending = None

    @precondition(lambda self: self.pending is None)
    @rule()
    def roll_back(self) -> None:
        try:
            self.collection.rollback()
        except Conflict:
            assert (
                len([n for n in self.collection.shelf.numbers() if n < self.collection.snapshot.generation])
                == 0
            )

    @rule()
    def settle(self) -> None:
        self.collection.settle()

    @rule()
    def restart(self) -> None:
        self.pending = None
        generation = self.collection.snapshot.generation
        self.collection.close()
        self.collection = Collection(self.folder / "c", TUNING)
        assert self.collection.snapshot.generation == generation
        found = {number: version for number, (version, _) in consistent(self.collection).items()}
        assert found == self.versions

    # -- searches

    @precondition(lambda self: self.versions)
    @rule(number=SOME, depth=DEPTH, owner=st.sampled_from([None, 0, 1]))
    def search_by_vector(self, number: int, depth: int, owner: int | None) -> None:
        """Hits are live, match and have the right scores; as many as asked for, if there are; most of the best."""
        if not self._key_is_known():
            return
        query = WORLD.vector(number, self.last_version, 0)
        condition = None if owner is None else Comparison("eq", "owner", owner)
        scores = {
            passage: float(vector @ query)
            for passage, (one, vector) in self._passages().items()
            if owner is None or one % 2 == owner
        }
        ranking = self.collection.snapshot.dense(query, depth, condition).ranking
        found = dict(zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True))
        assert len(ranking) == len(found) == min(depth, len(scores))
        assert found.keys() <= scores.keys()
        for passage, score in found.items():
            assert abs(scores[passage] - score) < TIE
        assert ranking.scores.tolist() == sorted(ranking.scores.tolist(), reverse=True)
        best = sorted(scores.values(), reverse=True)[:depth]
        good = sum(score >= best[-1] - TIE for score in found.values()) if best else 0
        assert good >= RECALL_MIN * len(best)
        if all(visible.part.tier_rows().keys() == {"delta"} for visible in self.collection.snapshot.parts):
            assert good == len(best), "deltas are searched exactly"

    @precondition(lambda self: self.versions)
    @rule(number=SOME, depth=DEPTH)
    def search_exactly(self, number: int, depth: int) -> None:
        query = WORLD.vector(number, self.last_version, 1)
        passages = self._passages()
        best = sorted(passages, key=lambda one: -float(passages[one][1] @ query))[:depth]
        [(ids, _)] = self.collection.exact(query[None, :], depth)
        assert ids.tolist() == best

    @precondition(lambda self: self.versions)
    @rule(number=SOME)
    def search_by_words(self, number: int) -> None:
        """Every live passage has the score that a fresh rank-bm25 index of the live passages gives it."""
        query = " ".join(WORLD.text(number, self.last_version).split()[:3])
        texts = {
            passage: searchable_text(stored.title, stored.text)
            for passage, stored in self.collection.passages(list(self._passages())).items()
        }
        ranking = self.collection.snapshot.lexical(query, len(texts))
        found = dict(zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True))
        expected = dict(zip(texts, bm25(list(texts.values()), query), strict=True))
        assert found == pytest.approx({one: score for one, score in expected.items() if score > 0}, rel=1e-4)

    @precondition(lambda self: self.versions)
    @rule(below=SOME)
    def search_by_filter(self, below: int) -> None:
        if not self._key_is_known():
            return
        expected = sorted(one for one, (number, _) in self._passages().items() if number < below)
        assert self.collection.snapshot.matching(Comparison("lt", "number", below)).tolist() == expected

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "collection"):
            return
        info = self.collection.info()
        assert info.documents == len(self.versions)
        live = sum(len(document(number, version).passages) for number, version in self.versions.items())
        assert self.collection.snapshot.live == sum(info.passages.values()) == live

    # -- the dict, as passages

    def _passages(self) -> dict[int, tuple[int, Floats]]:
        """Number and vector of every live passage, by its id: ids from the log, vectors from the dict."""
        found: dict[int, tuple[int, Floats]] = {}
        for ids, _ in self.collection.log.vectors(0, self.collection.log.position().last_passage):
            for passage, stored in self.collection.passages(ids.tolist()).items():
                number = int(stored.document_id.removeprefix("d"))
                pieces = document(number, self.versions[number]).passages
                found[passage] = (number, pieces[stored.ordinal].vector)
        return found

    def _key_is_known(self) -> bool:
        """A filter on a key that no part has ever seen is an error."""
        return any(visible.part.size for visible in self.collection.snapshot.parts)


def bm25(texts: list[str], query: str) -> list[float]:
    """rank-bm25's scores with the idf that cannot turn negative, and rounded counts."""
    corpus = [terms(text) for text in texts]
    reference = BM25Okapi(corpus, k1=Bm25().k1, b=Bm25().b)
    reference.avgdl = Statistics(len(texts), sum(map(len, corpus))).mean_length
    for term in reference.idf:
        frequency, passages = round_count(sum(term in words for words in corpus)), round_count(len(texts))
        reference.idf[term] = float(np.log1p((max(passages - frequency, 0) + 0.5) / (frequency + 0.5)))
    asked = [term for term, count in query_terms(query).items() for _ in range(int(count))]
    return [float(score) for score in reference.get_scores(asked)]


def run(examples: int) -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def test_histories() -> None:
    """After every step of 250 the collection holds what the dict holds, and every search says so."""
    run(5)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_many_histories() -> None:
    """The same, for 10,000 steps."""
    run(int(os.environ.get("NEARLINE_TORTURE_STEPS", "10000")) // STEPS)
