"""Any history of writes with and without an expiry, patches, deletions, rebuilds, restarts and steps of the clock,
against a dict."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from indexes.base.errors import InvalidInput, NotFound
from indexes.base.expiry import EXPIRES
from indexes.base.model import Delete, IndexOptions
from indexes.collection.collection import Collection
from indexes.filters.grammar import Comparison
from indexes.reading import scrolling
from indexes.reading.facets import FacetQuery, count_facets
from indexes.rebuild.builder import build
from retrieval.upkeep.expiring import delete_expired
from tests.support.vectors import World, make_collection

WORLD = World()
NUMBERS = 60
SOME = st.integers(0, NUMBERS - 1)
# From long ago, over the present instant itself, to later than most histories last.
WHEN = st.none() | st.integers(-50, 400)


class Histories(RuleBasedStateMachine):
    """`expires` is the dict: when each document expires that was neither deleted nor swept."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="nearline-expiry-"))
        self.now_ms = 1_000_000
        self.expires: dict[int, int | None] = {}
        self.options = IndexOptions(
            delta_passages_max=16, segments_max=0, exact_scan_passages_max=5, now_ms=lambda: self.now_ms
        )
        self.collection: Collection

    @initialize()
    def create(self) -> None:
        self.collection = make_collection(
            self.folder / "c", options=self.options, hot_capacity=10, language="en"
        )

    def teardown(self) -> None:
        self.collection.close()
        shutil.rmtree(self.folder)

    def live(self) -> dict[int, int | None]:
        return {one: at for one, at in self.expires.items() if at is None or at > self.now_ms}

    @rule(first=SOME, count=st.integers(1, 30), after=WHEN)
    def write(self, first: int, count: int, after: int | None) -> None:
        at = None if after is None else self.now_ms + after
        numbers = range(first, min(first + count, NUMBERS))
        documents = [replace(WORLD.document(number), expires_ms=at) for number in numbers]
        self.collection.write(documents).result()
        self.expires |= dict.fromkeys(numbers, at)

    @rule(number=SOME, after=WHEN)
    def patch(self, number: int, after: int | None) -> None:
        at = None if after is None else self.now_ms + after
        changed = self.collection.change(f"d{number}", lambda stored: replace(stored, expires_ms=at))
        if number in self.live():
            changed.result()
            self.expires[number] = at
        else:
            with pytest.raises(NotFound):
                changed.result()

    @rule(number=SOME)
    def delete(self, number: int) -> None:
        self.collection.write([Delete(f"d{number}")]).result()
        self.expires.pop(number, None)

    @rule()
    def sweep(self) -> None:
        asyncio.run(delete_expired(self.collection))
        self.expires = self.live()
        assert not len(self.collection.snapshot.expired)

    @rule()
    def rebuild(self) -> None:
        request = self.collection.begin_build()
        build(request, lambda *_: None)
        self.collection.adopt(request.number)

    @rule()
    def restart(self) -> None:
        self.collection.close()
        self.collection = Collection(self.folder / "c", self.options)

    @rule(step=st.integers(1, 120))
    def pass_time(self, step: int) -> None:
        self.now_ms += step

    @invariant()
    def holds(self) -> None:
        """Whatever can be asked tells of the live documents, and of no other."""
        live = self.live()
        ids = {f"d{number}" for number in live}
        snapshot = self.collection.snapshot
        page = scrolling.page(self.collection, 0, NUMBERS)
        assert {one.document.id: one.document.expires_ms for one in page.documents} == {
            f"d{number}": at for number, at in live.items()
        }
        assert not any(EXPIRES in one.document.metadata for one in page.documents)
        assert scrolling.count(self.collection).documents == len(live) == snapshot.live
        assert {
            f"d{number}" for number in range(NUMBERS) if self.collection.log.document(f"d{number}")
        } == ids
        vector = WORLD.vector(7)
        for found in (snapshot.dense(vector, NUMBERS).ranking.ids, snapshot.lexical("word1", NUMBERS).ids):
            stored = self.collection.passages(found.tolist())
            assert {one.document_id for one in stored.values()} <= ids
        assert len(self.collection.exact(vector[None], NUMBERS)[0][0]) == len(live)
        even = Comparison("eq", "even", value=True)
        expected = sum(number % 2 == 0 for number in live)
        try:
            assert len(snapshot.matching(even)) == expected
            (counted,) = count_facets(self.collection, snapshot, None, [FacetQuery("even")])
            assert dict(counted.values).get(True, 0) == expected
        except InvalidInput:  # nothing is there, or no value of this kind
            assert not expected


def test_any_history_agrees_with_a_dict() -> None:
    """From its instant on nothing tells of a document, swept or not; before it, nothing is missing."""
    limits = settings(
        max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Histories, settings=limits)
