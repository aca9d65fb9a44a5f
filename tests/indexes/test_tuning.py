"""Tuning: what settings are chosen, that they last, and that a live generation is only changed on purpose."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from indexes.build.chosen import FILE, read_chosen
from indexes.build.measuring import Truth
from indexes.build.rebuild import Rebuild
from indexes.build.trials import Trial, worth_it
from indexes.build.tuner import Tuner, chosen_from
from indexes.build.tuning import MISS_MAX, Pair, Share, Tuned, all_pairs, choose, curve
from indexes.collection import Collection
from indexes.dense.cold import ColdSettings
from indexes.errors import Conflict, InvalidInput, NotReady
from indexes.model import Floats, Tuning
from indexes.parts.generation import Generation
from retrieval.tasks import Tasks
from tests.support.vectors import World, fill, make_collection

WORLD = World(seed=4)
PASSAGES = 3000
TUNING = Tuning(delta_passages_max=256, segments_max=0)
QUERIES = WORLD.queries(400)


@pytest.fixture(scope="module")
def tuned_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collection, dict[float, Tuned]]]:
    """A collection of both tiers, and the outcomes for two targets, none of them applied."""
    collection = make_collection(tmp_path_factory.mktemp("tuning") / "c", tuning=TUNING, hot_capacity=600)
    fill(collection, WORLD, range(PASSAGES))
    rebuild(collection)
    before = live(collection).search_settings
    outcomes = {target: Tuner(collection, target, QUERIES).run(lambda *_: None) for target in (0.95, 0.99)}
    assert live(collection).search_settings == before, "measuring changed what is served"
    assert read_chosen(collection.folder) is None
    yield collection, outcomes
    collection.close()


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    """A small one of its own for each test, rebuilt once."""
    made = make_collection(tmp_path / "c", tuning=TUNING, hot_capacity=300)
    fill(made, WORLD, range(1000))
    rebuild(made)
    yield made
    made.close()


def rebuild(collection: Collection) -> None:
    collection.adopt(Rebuild(collection.begin_build(), timeout_s=120).run(lambda *_: None))


def live(collection: Collection) -> Generation:
    [found] = [one.part for one in collection.snapshot.parts if isinstance(one.part, Generation)]
    return found


def tune(collection: Collection, target: float = 0.95) -> Tuned:
    """Choose and apply."""
    outcome = Tuner(collection, target, None).run(lambda *_: None)
    assert outcome.met
    collection.set_search(chosen_from(outcome))
    return outcome


def recall(collection: Collection, queries: np.ndarray, k: int = 10) -> float:
    """Of the snapshot's own searches, against the log."""
    truth = collection.exact(queries, k)
    found = [collection.snapshot.dense(query, k).ranking.ids for query in queries]
    hits = sum(len(np.intersect1d(ids, best)) for ids, (best, _) in zip(found, truth, strict=True))
    return hits / (k * len(queries))


# --- what is chosen -------------------------------------------------------------------------------------------


def test_the_target_is_reached_on_both_halves(tuned_at: tuple[Collection, dict[float, Tuned]]) -> None:
    """On the tuning half outright; on the other within the miss allowed and what so few queries can tell."""
    _, outcomes = tuned_at
    for target, outcome in outcomes.items():
        assert outcome.met
        assert outcome.tuning.queries + outcome.validation.queries == len(QUERIES)
        assert outcome.tuning.recall >= target
        assert outcome.validation.recall >= target - MISS_MAX - outcome.validation.half_width
        assert outcome.before.queries == outcome.validation.queries
        assert set(outcome.validation.tiers) == {"hot", "cold"}
        assert outcome.filtered["tuning"] >= target
        assert not outcome.held_out


def test_the_curve_rises(tuned_at: tuple[Collection, dict[float, Tuned]]) -> None:
    """Each point of it costs more than the one before and finds more."""
    _, outcomes = tuned_at
    for outcome in outcomes.values():
        assert outcome.curve
        for lower, higher in zip(outcome.curve, outcome.curve[1:], strict=False):
            assert lower.us <= higher.us
            assert lower.recall <= higher.recall


def test_the_curve_leaves_out_what_is_beaten(tuned_at: tuple[Collection, dict[float, Tuned]]) -> None:
    """Settings that take longer and find no more than others are not on it, nor those below its lower end."""
    collection, _ = tuned_at
    found = ((5, 3, 3), (10, 4, 4), (20, 3, 5), (30, 4, 5), (40, 5, 5), (50, 5, 5))
    pairs = [pair_of(us, [hot] * 100, [cold] * 100) for us, hot, cold in found]
    points = list(curve(pairs, truth_of(5, 5), live(collection)))
    assert [(point.us, point.recall) for point in points] == [(10, 0.8), (30, 0.9), (40, 1.0)]


def pair_of(us: float, hot: list[int], cold: list[int]) -> Pair:
    ones = Trial(int(us), np.array(hot), us / 2)
    return Pair(ones, Trial(ColdSettings(int(us)), np.array(cold), us / 2))


def truth_of(hot: int, cold: int, queries: int = 100) -> Truth:
    scores = [np.zeros(count, np.float32) for count in (hot, cold)]
    return Truth(np.zeros((queries, 4), np.float32), [scores[0]] * queries, [scores[1]] * queries)


def test_the_cheapest_that_reaches_it_is_taken() -> None:
    """Cheaper ones that miss are passed over, dearer ones not needed."""
    truth = truth_of(5, 5)
    poor, good, best = (pair_of(us, [5] * 100, [found] * 100) for us, found in ((10, 4), (20, 5), (30, 5)))
    assert choose([poor, good, best], truth, 0.95, 0.5) == (good, True)
    assert choose([poor], truth, 0.95, 0.5) == (poor, False)
    assert choose([poor, good, best], truth, 0.9, 0.5) == (good, True), "one tier is too far below"


def test_one_tier_cannot_make_up_for_the_other() -> None:
    """Recall overall is met, but the tier with few of the neighbours would lose most of its own."""
    truth = truth_of(9, 1)
    lopsided, even = pair_of(10, [9] * 100, [0] * 100), pair_of(20, [9] * 100, [1] * 100)
    assert choose([lopsided, even], truth, 0.9, 0.5) == (even, True)


def test_few_queries_ask_for_more() -> None:
    """The margin grows with the spread over queries, and is 0 where they are many."""
    each = np.array([10] * 19 + [0])
    few = Share.of(each, np.full(20, 10))
    many = Share.of(np.tile(each, 1000), np.full(20_000, 10))
    assert few.recall == many.recall == 0.95
    assert few.margin > 0.05
    assert many.margin == 0
    assert few.sure < many.sure
    assert Share.of(np.zeros(3, np.int64), np.zeros(3, np.int64)).sure == 1


def test_settings_that_are_beaten_are_not_shown() -> None:
    """One that takes clearly longer and finds no more is left out; one that finds more is not."""
    quick, slow, better = (
        Trial(n, np.array([found]), us) for n, found, us in ((1, 8, 10), (2, 8, 20), (3, 9, 30))
    )
    assert [one.setting for one in worth_it([quick, slow, better])] == [1, 3]
    assert [pair.us for pair in all_pairs([slow, quick], [Trial(ColdSettings(), np.array([0]), 1.0)])] == [
        11,
        21,
    ]


# --- that it lasts --------------------------------------------------------------------------------------------


def test_applied_settings_are_used_at_once_and_after_opening(collection: Collection) -> None:
    """The live generation searches with them now, and again when the collection is opened anew."""
    outcome = tune(collection)
    expected = (outcome.ef, outcome.search)
    assert live(collection).search_settings == expected
    search = collection.info().search
    assert search is not None
    assert search.tuned
    assert (search.ef, search.probes) == (outcome.ef, outcome.search.probes)
    assert recall(collection, WORLD.queries(200)) > 0.9
    again = Collection(collection.folder, TUNING)
    try:
        assert live(again).search_settings == expected
        assert again.recall_target == 0.95
    finally:
        again.close()


def test_a_rebuild_keeps_to_the_wish_and_measures_anew(collection: Collection) -> None:
    """The next generation is built for the collection's own target and has settings of its own; going back finds the
    tuned ones again."""
    outcome = tune(collection, 0.96)
    assert collection.begin_build().recall_target == 0.96
    rebuild(collection)
    info = collection.info()
    assert info.search is not None
    assert (info.recall_target, info.search.tuned) == (0.96, False)
    manifest = live(collection).manifest
    assert live(collection).search_settings == (manifest.ef, manifest.search)
    collection.rollback()
    assert live(collection).search_settings == (outcome.ef, outcome.search)


def test_a_second_tuning_begins_at_the_first(collection: Collection) -> None:
    """What is called "before" is what was in use, not what the build had chosen."""
    first = tune(collection, 0.95)
    second = Tuner(collection, 0.99, None).run(lambda *_: None)
    assert (second.before_ef, second.before_search) == (first.ef, first.search)


@pytest.mark.parametrize("damage", ["cut", "changed", "not json", "other format"])
def test_a_damaged_file_is_not_used(collection: Collection, damage: str) -> None:
    """The collection opens with the manifest's own settings and the configuration's target."""
    tune(collection)
    path = collection.folder / FILE
    content = path.read_bytes()
    chosen = msgspec.json.decode(content)
    damaged = {
        "cut": content[: len(content) // 2],
        "changed": content.replace(b'"recall_target": 0.95', b'"recall_target": 0.15'),
        "not json": b"\xff\x00",
        "other format": msgspec.json.encode({**chosen, "format_version": 2}),
    }[damage]
    assert damaged != content
    path.write_bytes(damaged)
    again = Collection(collection.folder, TUNING)
    try:
        manifest = live(again).manifest
        assert live(again).search_settings == (manifest.ef, manifest.search)
        assert again.recall_target == TUNING.recall_target
    finally:
        again.close()


def test_settings_of_another_generation_are_refused(collection: Collection) -> None:
    """A swap that came between choosing and applying wins; nothing is written."""
    outcome = Tuner(collection, 0.95, None).run(lambda *_: None)
    rebuild(collection)
    with pytest.raises(Conflict, match="generation 1 is not live any more"):
        collection.set_search(chosen_from(outcome))
    assert read_chosen(collection.folder) is None


def test_searches_go_on_while_settings_change(collection: Collection) -> None:
    """Every search beside a hundred changes returns all its hits."""
    outcome = Tuner(collection, 0.95, None).run(lambda *_: None)
    one = chosen_from(outcome)
    other = msgspec.structs.replace(one, ef=300, search=ColdSettings(50, 400, 1.0))
    stop = threading.Event()
    short: list[int] = []

    def search() -> None:
        while not stop.is_set():
            short.extend(
                count
                for query in QUERIES[:20]
                if (count := len(collection.snapshot.dense(query, 10).ranking)) != 10
            )

    searching = threading.Thread(target=search)
    searching.start()
    for at in range(100):
        collection.set_search(one if at % 2 else other)
    stop.set()
    searching.join()
    assert short == []
    assert live(collection).search_settings == (one.ef, one.search)


# --- what is refused ------------------------------------------------------------------------------------------


def test_what_cannot_be_tuned_is_refused(collection: Collection, tmp_path: Path) -> None:
    """No generation, a target below the floor, a handful of queries: each by name, before anything is measured."""
    with pytest.raises(InvalidInput, match=r"at least the recall floor, 0\.9") as caught:
        Tuner(collection, 0.5, None)
    assert caught.value.param == "recall_target"
    with pytest.raises(InvalidInput, match="5 different queries are too few") as caught:
        Tuner(collection, 0.95, QUERIES[:5])
    assert caught.value.param == "queries"
    empty = make_collection(tmp_path / "empty", tuning=TUNING)
    with pytest.raises(Conflict, match="no generation to tune"):
        Tuner(empty, 0.95, None)
    empty.close()


def test_closing_does_not_wait_for_queries(collection: Collection) -> None:
    """A service that closes while texts are embedded ends the job, which says so."""

    async def never() -> Floats:
        await asyncio.Event().wait()
        raise AssertionError

    async def story() -> None:
        tasks = Tasks(lambda job: None)
        job = tasks.tune("c", collection, 0.95, never)
        while job.progress.stage != "embed":  # noqa: ASYNC110 - jobs are polled
            await asyncio.sleep(0.005)
        await asyncio.wait_for(tasks.close(), 30)
        assert (job.status, job.error) == ("failed", "the service is closing")

    asyncio.run(story())


def test_a_tuning_can_be_cancelled(collection: Collection) -> None:
    """The child is ended; whoever waits is told; nothing has changed."""
    tuner = Tuner(collection, 0.95, None)
    with pytest.raises(NotReady, match="cancelled"):
        tuner.run(lambda stage, done, total: tuner.cancel())
    assert read_chosen(collection.folder) is None
