"""Tuning: what settings are chosen, that they last, and that a live generation is only changed on purpose."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import msgspec
import numpy as np
import pytest

from indexes.base.errors import Conflict, InvalidInput, NotReady
from indexes.base.model import Floats, IndexOptions
from indexes.collection.collection import Collection
from indexes.dense import cold
from indexes.dense.cold import ColdSettings
from indexes.parts.generation import Generation
from indexes.parts.shelf import Shelf
from indexes.rebuild import optimizer
from indexes.rebuild.chosen import FILE, TunedSettings, read_chosen
from indexes.rebuild.optimizer import (
    TIER_SLACK,
    Optimum,
    SettingsTrial,
    choose,
    choose_settings,
    filtered_recall,
    shares,
    try_settings,
)
from indexes.rebuild.shares import Share
from indexes.rebuild.truth import TIE, Truth, halves, synthetic_queries, true_neighbors
from indexes.upkeep.tuner import QUERIES as SYNTHETIC
from indexes.upkeep.tuner import TuneOutcome, TuneRequest, TuneRun, curve, tune
from retrieval.upkeep.tasks import Tasks
from tests.support.vectors import World, fill, make_collection, rebuild

WORLD = World(seed=4)
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)
POOR = ColdSettings(probes=1, rescored=1)


def strays(count: int) -> Floats:
    """Queries that lie away from the passages: settings differ in what they find for these."""
    noise = np.random.default_rng(1).normal(size=(count, WORLD.dimensions)) / np.sqrt(WORLD.dimensions)
    vectors = WORLD.queries(count) + 3 * noise
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


QUERIES = strays(200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of both tiers, rebuilt once and closed. Nobody changes it."""
    made = make_collection(tmp_path_factory.mktemp("tuning") / "c", options=TUNING, hot_capacity=500)
    fill(made, WORLD, range(2500))
    rebuild(made)
    made.close()
    return made.folder


@pytest.fixture(scope="module")
def twice_built(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with settings chosen for a target of .96, and rebuilt since. Nobody changes it either."""
    made = opened(folder, tmp_path_factory.mktemp("twice"))
    made.set_search(wish(live(made), 0.96))
    rebuild(made)
    made.close()
    return made.folder


@pytest.fixture
def collection(folder: Path, tmp_path: Path) -> Iterator[Collection]:
    """One of its own for each test."""
    with closing(opened(folder, tmp_path)) as copied:
        yield copied


@pytest.fixture(scope="module")
def generation(folder: Path) -> Generation:
    """For trials in this process; every test sets its own settings."""
    return Generation.load(Shelf(folder).path(1))


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[float, TuneOutcome]:
    """Of tuning for two targets."""
    with closing(Collection(folder, TUNING)) as untouched:
        return {target: TuneRun(untouched, target, QUERIES).run(quiet) for target in (0.95, 0.99)}


def opened(folder: Path, at: Path) -> Collection:
    shutil.copytree(folder, at / "copied")
    return Collection(at / "copied", TUNING)


def quiet(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


def live(collection: Collection) -> Generation:
    [found] = [one.part for one in collection.snapshot.parts if isinstance(one.part, Generation)]
    return found


def wish(
    generation: Generation, target: float = 0.95, ef: int = 77, cold: ColdSettings = POOR
) -> TunedSettings:
    """Settings as a tuning might have chosen them, which no build chooses."""
    return TunedSettings(
        recall_target=target,
        generation=generation.number,
        seal=generation.manifest.sha256,
        ef=ef,
        search=cold,
        recall={"hot": target, "cold": target},
        chosen_ms=1,
    )


def recall(collection: Collection, queries: Floats, k: int = 10) -> float:
    """Of the snapshot's own searches, against the log. As wherever it is measured, ties are as good as each other."""
    truth = collection.exact(queries, k)
    found = [collection.snapshot.dense(query, k).ranking.scores for query in queries]
    hits = sum(int((scores >= best[-1] - TIE).sum()) for scores, (_, best) in zip(found, truth, strict=True))
    return hits / (k * len(queries))


# --- what is chosen -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_target_is_reached(outcomes: dict[float, TuneOutcome]) -> None:
    """On the tuning half outright; the other half is measured too, and so is what was in use until now."""
    for target, outcome in outcomes.items():
        assert outcome.met
        assert outcome.tuning.recall >= target
        assert outcome.tuning.queries + outcome.validation.queries == len(QUERIES)
        assert outcome.before.queries == outcome.validation.queries
        assert set(outcome.validation.tiers) == {"hot", "cold"}
        assert not outcome.held_out


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_intervals_of_synthetic_queries_begin_where_three_times_as_much_is_missed(
    folder: Path, generation: Generation, tmp_path: Path, given: bool
) -> None:
    """A tuning states them as a rebuild does, wherever it states any; not for the same queries if these are given."""
    queries = synthetic_queries(generation, SYNTHETIC, seed=17)
    np.save(tmp_path / "queries.npy", queries)
    request = TuneRequest(str(folder), 1, str(tmp_path / "queries.npy") if given else "", 0.95, 0.9)
    outcome, times = tune(request, quiet), 1 if given else 3
    by, other = halves(true_neighbors(generation, queries))
    chosen, before = (outcome.ef, outcome.search), (outcome.before_ef, outcome.before_search)
    for measure, settings, truth in (
        (outcome.tuning, chosen, by),
        (outcome.validation, chosen, other),
        (outcome.before, before, other),
    ):
        found = shares(try_settings(generation, *settings, truth), truth)
        for cohort, share in found.items():
            expected = (1 - times * (1 - share.low), share.high)
            assert measure.intervals[cohort] == pytest.approx(expected, abs=1e-4)
        assert (measure.low, measure.high) == measure.intervals["all"]
    evidence = outcome.chosen().evidence
    assert evidence is not None
    assert evidence.source == ("given queries" if given else "synthetic queries")
    assert evidence.intervals == outcome.validation.intervals


@pytest.mark.slow
def test_the_outcome_says_what_its_settings_find(
    outcomes: dict[float, TuneOutcome], collection: Collection
) -> None:
    """Applied, they find in all queries together what was reported of the two halves."""
    for outcome in outcomes.values():
        collection.set_search(outcome.chosen())
        halves = (outcome.tuning, outcome.validation)
        reported = sum(half.recall * half.queries for half in halves) / len(QUERIES)
        assert recall(collection, QUERIES) == pytest.approx(reported, abs=0.003)


@pytest.mark.slow
def test_the_curve_rises(outcomes: dict[float, TuneOutcome]) -> None:
    """Each point of it costs more than the one before and finds more."""
    for outcome in outcomes.values():
        assert outcome.curve
        for lower, higher in zip(outcome.curve, outcome.curve[1:], strict=False):
            assert lower.us <= higher.us
            assert lower.recall <= higher.recall


def test_the_curve_leaves_out_what_is_beaten(generation: Generation) -> None:
    """Settings that take longer and find no more than others are not on it, nor those below its lower end."""
    found = ((5, 3, 3), (10, 4, 4), (20, 3, 5), (30, 4, 5), (40, 5, 5), (50, 5, 5))
    trials = [trial_of(us, [hot] * 100, [cold] * 100) for us, hot, cold in found]
    points = curve(Optimum(trials[-1], True, trials), truth_of(5, 5), generation)
    assert [(point.us, point.recall) for point in points] == [(10, 0.8), (30, 0.9), (40, 1.0)]


def trial_of(us: float, hot: Sequence[int], cold: Sequence[int]) -> SettingsTrial:
    """The graph alone finds as many of the hot ones as the whole search does."""
    found = {"all": np.add(hot, cold), "hot": np.array(hot), "cold": np.array(cold)}
    return SettingsTrial(int(us), ColdSettings(int(us)), found, us)


def truth_of(hot: int, cold: int, queries: int = 100) -> Truth:
    scores = [np.zeros(count, np.float32) for count in (hot, cold)]
    return Truth(np.zeros((queries, 32), np.float32), [scores[0]] * queries, [scores[1]] * queries)


def test_the_cheapest_that_reaches_it_is_taken() -> None:
    """Cheaper ones that miss are passed over, dearer ones not needed."""
    truth = truth_of(5, 5)
    poor, good, best = (trial_of(us, [5] * 100, [found] * 100) for us, found in ((10, 4), (20, 5), (30, 5)))
    assert choose([poor, good, best], truth, 0.95, 0.5) == (good, True)
    assert choose([poor], truth, 0.95, 0.5) == (poor, False)
    assert choose([poor, good, best], truth, 0.9, 0.5) == (good, True), "one tier is too far below"


def test_one_tier_cannot_make_up_for_the_other() -> None:
    """Recall overall is met, but the tier with few of the neighbours would lose most of its own."""
    truth = truth_of(9, 1)
    lopsided, even = trial_of(10, [9] * 100, [0] * 100), trial_of(20, [9] * 100, [1] * 100)
    assert choose([lopsided, even], truth, 0.9, 0.5) == (even, True)


def test_what_is_cheaper_and_finds_more_is_not_passed_over() -> None:
    """The hot tier holds 150 of 3,000 neighbors, and one query loses three of them: that is chance. It used to rule
    these settings out, and dearer ones that lost thirty cold neighbors were taken."""
    hot, cold = [10] * 15 + [0] * 285, [0] * 15 + [10] * 285
    few = [np.zeros(count, np.float32) for count in hot], [np.zeros(count, np.float32) for count in cold]
    truth = Truth(np.zeros((300, 32), np.float32), *few)
    cheap = trial_of(170, [7, *hot[1:]], cold)
    dear = trial_of(184, hot, [*cold[:-10], *[9] * 10])
    assert choose([cheap, dear], truth, 0.99, 0.9) == (cheap, True)


def test_few_queries_ask_for_more() -> None:
    """The margin grows with the spread over queries, and shrinks with their number; so does the interval."""
    each = np.array([10] * 19 + [0])
    few = Share.of(each, np.full(20, 10))
    many = Share.of(np.tile(each, 1000), np.full(20_000, 10))
    assert few.recall == many.recall == 0.95
    assert few.margin > 0.05
    assert many.margin < 0.003
    assert few.sure < many.sure
    assert few.low < many.low < 0.95 < many.high < few.high
    nothing = Share.of(np.zeros(3, np.int64), np.zeros(3, np.int64))
    assert (nothing.sure, nothing.low, nothing.high) == (1, 0, 1)


def test_few_queries_seldom_flatter() -> None:
    """Settings that just miss the target pass one time in twenty; good ones nearly always."""
    rng = np.random.default_rng(3)

    def passed(true_recall: float) -> float:
        """How often. A query that misses anything misses two of five in either tier."""
        draws = np.where(rng.random((1000, 200)) < (1 - true_recall) / 0.4, 3, 5)
        pairs = [trial_of(10, found, found) for found in draws]
        return float(np.mean([choose([pair], truth_of(5, 5, 200), 0.95, 0.5)[1] for pair in pairs]))

    assert passed(0.95 - 0.001) <= 0.07
    assert passed(0.98) >= 0.95


def test_recall_under_filters_is_measured_on_other_queries(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build says what its settings find for the half of the queries that they were not chosen by."""
    for name, value in {"RANKS_OVERSAMPLING": 1, "OVERSAMPLING": 1, "FEW_LEFT_OUT": 0.0}.items():
        monkeypatch.setattr(cold, name, value)  # otherwise both halves find everything
    monkeypatch.setattr(optimizer, "RESCORED", (1,))
    chosen = choose_settings(generation, 0.1, 0.0, QUERIES[:150])
    by, other = (
        round(filtered_recall(generation, chosen.search, half.queries), 4)
        for half in halves(true_neighbors(generation, QUERIES[:150]))
    )
    assert chosen.recall["cold_filtered"] == other != by


class Opposite(World):
    """The newest passages lie opposite to all others."""

    def vector(self, *key: int) -> Floats:
        vector = super().vector(*key) * 0.3
        vector[0] = 1 if key[0] < 2000 else -1
        unit: Floats = (vector / np.linalg.norm(vector)).astype(np.float32)
        return unit


@pytest.mark.slow
def test_a_hot_tier_that_holds_the_whole_answer_gives_all_of_it(tmp_path: Path) -> None:
    """The lists find hot passages as well as cold ones, although few of their passages are hot."""
    world = Opposite()
    with closing(make_collection(tmp_path / "c", options=TUNING, hot_capacity=500)) as made:
        fill(made, world, range(2500))
        rebuild(made)
        generation = live(made)
        generation.tune(ef=512, cold=ColdSettings(generation.lists, 1000))
        for query in world.queries(5):
            rows, _ = generation.nearest(query, 100, None, 0)
            assert len(rows) == 100
            assert rows.max() < generation.manifest.hot


def test_settings_of_both_tiers_reach_the_target_together(folder: Path) -> None:
    """A build measures the recall of the whole answer; a single tier may lie a little below the target."""
    manifest = Generation.load(Shelf(folder).path(1)).manifest
    assert set(manifest.recall) == {"all", "hot", "cold", "cold_filtered"}
    assert manifest.recall["all"] >= 0.99
    assert min(manifest.recall["hot"], manifest.recall["cold"]) >= 0.99 - TIER_SLACK


# --- that it lasts --------------------------------------------------------------------------------------------


def test_applied_settings_are_used_at_once_and_after_opening(collection: Collection) -> None:
    """The live generation searches with them now, and again when the collection is opened anew."""
    generation = live(collection)
    collection.set_search(wish(generation, ef=10))
    poor = recall(collection, QUERIES)
    thorough = ColdSettings(generation.lists, 1000)
    collection.set_search(wish(generation, ef=512, cold=thorough))
    full = recall(collection, QUERIES)
    assert poor < 0.9
    assert full > 0.99
    search = collection.info().search
    assert search is not None
    assert search.tuned
    assert (search.ef, search.probes) == (512, generation.lists)
    with closing(Collection(collection.folder, TUNING)) as again:
        assert live(again).search_settings == (512, thorough)
        assert recall(again, QUERIES) == full
        assert again.recall_target == 0.95


@pytest.mark.slow
def test_a_rebuild_keeps_to_the_wish_and_measures_anew(twice_built: Path, tmp_path: Path) -> None:
    """The next generation is built for the collection's own target and has settings of its own; going back finds the
    tuned ones again."""
    with closing(opened(twice_built, tmp_path)) as collection:
        assert collection.begin_build().recall_target == 0.96
        info = collection.info()
        assert info.search is not None
        assert (info.generation, info.recall_target, info.search.tuned) == (2, 0.96, False)
        manifest = live(collection).manifest
        assert live(collection).search_settings == (manifest.ef, manifest.search) != (77, POOR)
        collection.rollback()
        assert live(collection).search_settings == (77, POOR)


@pytest.mark.slow
def test_measuring_changes_nothing(collection: Collection) -> None:
    """What a tuning calls "before" is what was in use, not what the build had chosen; it stays in use until the outcome
    is applied."""
    first = wish(live(collection))
    collection.set_search(first)
    kept = (collection.folder / FILE).read_bytes()
    outcome = TuneRun(collection, 0.99, None).run(quiet)
    assert outcome.held_out
    assert (outcome.before_ef, outcome.before_search) == (first.ef, first.search)
    assert live(collection).search_settings == (first.ef, first.search)
    assert (collection.folder / FILE).read_bytes() == kept


@pytest.mark.parametrize("damage", ["cut", "changed", "not json", "other format"])
def test_a_damaged_file_is_not_used(collection: Collection, damage: str) -> None:
    """The collection opens with the manifest's own settings and the configuration's target."""
    collection.set_search(wish(live(collection)))
    path = collection.folder / FILE
    content = path.read_bytes()
    chosen = msgspec.json.decode(content)
    damaged = {
        "cut": content[: len(content) // 2],
        "changed": content.replace(b'"recall_target": 0.95', b'"recall_target": 0.15'),
        "not json": b"\xff\x00",
        "other format": msgspec.json.encode({**chosen, "format": 2}),
    }[damage]
    assert damaged != content
    path.write_bytes(damaged)
    with closing(Collection(collection.folder, TUNING)) as again:
        manifest = live(again).manifest
        assert live(again).search_settings == (manifest.ef, manifest.search)
        assert again.recall_target == TUNING.recall_target


def test_settings_of_another_generation_are_refused(twice_built: Path, tmp_path: Path) -> None:
    """A swap that came between choosing and applying wins; nothing is written."""
    with closing(opened(twice_built, tmp_path)) as collection:
        before = read_chosen(collection.folder)
        assert before is not None
        with pytest.raises(Conflict, match="generation 1 is not live any more"):
            collection.set_search(msgspec.structs.replace(before, ef=88))
        assert read_chosen(collection.folder) == before


def test_searches_go_on_while_settings_change(collection: Collection) -> None:
    """Every search beside a hundred changes returns all its hits."""
    one = wish(live(collection))
    other = msgspec.structs.replace(one, ef=300, search=ColdSettings(50, 400, 1.0))
    stop = threading.Event()
    hits: list[int] = []

    def search() -> None:
        for query in cycle(QUERIES):
            if stop.is_set():
                return
            hits.append(len(collection.snapshot.dense(query, 10).ranking))

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(search)
        try:
            changes = 0
            while (changes < 100 or len(hits) < 100) and not searching.done():
                for settings in (other, one):
                    collection.set_search(settings)
                    changes += 1
        finally:
            stop.set()
        searching.result()
    assert len(hits) >= 100
    assert set(hits) == {10}
    assert live(collection).search_settings == (one.ef, one.search)


# --- what is refused ------------------------------------------------------------------------------------------


def test_what_cannot_be_tuned_is_refused(collection: Collection, tmp_path: Path) -> None:
    """No generation, a target below the floor, a handful of queries: each by name, before anything is measured."""
    with pytest.raises(InvalidInput, match=r"at least the recall floor, 0\.9") as caught:
        TuneRun(collection, 0.5, None)
    assert caught.value.param == "recall_target"
    with pytest.raises(InvalidInput, match="5 different queries are too few") as caught:
        TuneRun(collection, 0.95, QUERIES[:5])
    assert caught.value.param == "queries"
    empty = make_collection(tmp_path / "empty", options=TUNING)
    with pytest.raises(Conflict, match="no generation to tune"):
        TuneRun(empty, 0.95, None)
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
    tuner = TuneRun(collection, 0.95, None)
    with pytest.raises(NotReady, match="cancelled"):
        tuner.run(lambda stage, done, total: tuner.cancel())
    assert read_chosen(collection.folder) is None


@pytest.mark.parametrize("kinds", [1, 30, 400])
def test_vectors_that_repeat_in_both_tiers(kinds: int, tmp_path: Path) -> None:
    """A hot passage may stand for a cold one that has the same vector: what is measured is what a user would miss."""
    vectors = WORLD.queries(kinds)
    with closing(make_collection(tmp_path / "c", hot_capacity=1500)) as collection:
        for start in range(0, 4000, 500):
            collection.write(
                [
                    replace(WORLD.document(number), passages=(replace(one, vector=vectors[number % kinds]),))
                    for number in range(start, start + 500)
                    for one in WORLD.document(number).passages[:1]
                ]
            ).result()
        recall = rebuild(collection).manifest.recall
        found = collection.snapshot.dense(vectors[0], 10).ranking.scores
    assert found[:10].min() > 1 - TIE
    assert recall["all"] > 0.98, recall
