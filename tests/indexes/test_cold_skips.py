"""Skipping the cold tier: the threshold, the bound and the audit, on loads whose true loss the test knows."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from indexes.base.model import TIERS, ColdPolicy, Floats, Ranking, Spared, Sparing
from indexes.dense import cold_skips
from indexes.dense.cold_skips import (
    NOTES,
    SHARE_QUERIES,
    ColdSkipper,
    ListBounds,
    Rule,
    Verdict,
    judge,
    upper_mean,
)

K = 10
DIMENSIONS, LISTS = 32, 16
POLICY = ColdPolicy("calibrated", budget=0.005, audit=0.05)


class Load:
    """Queries that the hot tier answers well or badly. `easy`: the share of those it answers whole.

    An easy query's hot scores are high; a hard one's are low, and it loses `hard_loss` without the cold tier. With
    `hidden` some queries look easy and are not.
    """

    def __init__(self, easy: float, hard_loss: float = 0.6, hidden: float = 0.0, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self._easy, self._hard_loss, self._hidden = easy, hard_loss, hidden

    def draw(self) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        """A query, its hot scores, and what it would lose."""
        easy = self._rng.random() < self._easy
        top = self._rng.normal(0.85 if easy else 0.55, 0.04)
        scores = np.sort(top - self._rng.random(K) * 0.1)[::-1].astype(np.float32)
        lies = easy and self._rng.random() < self._hidden
        loss = 0.0 if easy and not lies else float(np.clip(self._rng.normal(self._hard_loss, 0.1), 0.1, 1))
        return unit(self._rng), scores, round(loss, 1)


def unit(rng: np.random.Generator) -> NDArray[np.float32]:
    return unit_of(rng.normal(size=DIMENSIONS).astype(np.float32))


def unit_of(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def ranked(scores: NDArray[np.float32]) -> Ranking:
    """The same hot passages for every query, with these scores."""
    return Ranking(np.arange(len(scores)), scores, np.full(len(scores), TIERS.index("hot"), np.int8))


def bounds() -> ListBounds:
    """Lists that reach everywhere: nothing is ever proven needless."""
    rng = np.random.default_rng(2)
    return ListBounds(np.array([unit(rng) for _ in range(LISTS)]), np.full(LISTS, -1, np.float32))


BOUNDS = bounds()


def decide(watch: ColdSkipper, query: Floats, scores: Floats, *, counted: bool = True) -> Verdict:
    """What a query does that found hot passages with these scores. The lists alone find all."""
    sparing = watch.sparing(counted=counted)
    return Verdict(search=True) if sparing is None else judge(sparing, BOUNDS, query, ranked(scores), K)


def ask(
    watch: ColdSkipper, query: Floats, scores: Floats, loss: float, times: tuple[float, float] = (1.0, 10.0)
) -> tuple[Verdict, bool]:
    """Decide, and tell what was seen of the loss. Also returns whether the query was observed."""
    verdict = decide(watch, query, scores)
    spared = verdict.spared
    observed = spared is not None and spared.by.observed and spared.outcome != "proven"
    if spared is not None:
        first_s, lists_s = times
        watch.learn(replace(spared, loss=loss, first_s=first_s, lists_s=lists_s) if observed else spared)
    return verdict, observed


def play(
    watch: ColdSkipper, load: Load, queries: int, times: tuple[float, float] = (1.0, 10.0)
) -> tuple[float, float]:
    """Mean loss over these queries, and the share of them that skipped the cold tier. `times`: the seconds that the
    search of the hot tier and that of the lists take."""
    lost, skipped = 0.0, 0
    for _ in range(queries):
        query, scores, loss = load.draw()
        verdict, _ = ask(watch, query, scores, loss, times)
        if not verdict.search:
            skipped += 1
            lost += loss
    return lost / queries, skipped / queries


def test_always_searches_while_it_learns() -> None:
    """Nothing is skipped before enough queries were noted."""
    watch = ColdSkipper(POLICY)
    assert play(watch, Load(easy=0.9), NOTES - 1) == (0.0, 0.0)
    assert watch.state().state == "learning"


@pytest.mark.parametrize("easy", [0.6, 0.9])
def test_skips_within_the_budget(easy: float) -> None:
    """Once calibrated, most easy queries skip, and the recall lost on average stays within the budget."""
    watch = ColdSkipper(POLICY)
    load = Load(easy)
    play(watch, load, NOTES)
    loss, skipped = play(watch, load, 10_000)
    assert loss <= POLICY.budget
    assert skipped >= easy - 0.1
    assert watch.state().stops == 0


@pytest.mark.slow
def test_hidden_losses_are_counted() -> None:
    """Where some queries look easy and are not, fewer skip, and the loss stays within the budget."""
    for seed in range(5):
        watch = ColdSkipper(POLICY, seed=seed)
        load = Load(easy=0.9, hard_loss=0.2, hidden=0.1, seed=seed)
        play(watch, load, NOTES)
        loss, _ = play(watch, load, 8000)
        assert loss <= 1.2 * POLICY.budget


@pytest.mark.slow
def test_a_load_without_hot_queries_skips_next_to_nothing() -> None:
    """Where the hot tier never suffices, hardly any query skips the cold one, at a loss within the budget."""
    watch = ColdSkipper(POLICY)
    loss, skipped = play(watch, Load(easy=0.0), 2 * NOTES)
    assert loss <= POLICY.budget
    assert skipped <= 0.01


@pytest.mark.slow
def test_the_audit_stops_skipping() -> None:
    """When queries that look easy begin to lose, skipping soon stops and learning starts over."""
    stopped = []
    for seed in range(5):
        watch = ColdSkipper(POLICY, seed=seed)
        play(watch, Load(easy=0.9, seed=seed), NOTES + 1000)
        assert watch.state().state == "skipping"
        shifted = Load(easy=0.9, hidden=0.3, seed=seed + 100)
        queries = 0
        while watch.state().state == "skipping" and queries < 5000:
            play(watch, shifted, 10)
            queries += 10
        stopped.append(queries)
        assert watch.state().stops == 1
    assert np.median(stopped) < 600, "at one audit in twenty skips that is some 25 audits"


@pytest.mark.slow
def test_skipping_more_counts_as_losing_more() -> None:
    """A load that comes to skip three times as many queries, each losing what few enough could afford, is stopped."""
    for seed in range(3):
        watch = ColdSkipper(POLICY, seed=seed)
        # A skip may lose .016 where three queries in ten skip, and .005 where nearly all do.
        play(watch, Load(easy=0.3, hidden=0.01, seed=seed), NOTES + 1000)
        assert watch.state().state == "skipping"
        loss, _ = play(watch, Load(easy=0.99, hidden=0.018, seed=seed + 100), 12_000)
        assert watch.state().stops >= 1
        assert loss <= POLICY.budget / 2, "twice the budget, were nothing stopped"


def test_a_threshold_that_no_longer_fits_is_replaced() -> None:
    """A load of which nothing is skipped loses nothing, and soon gets a threshold of its own."""
    watch = ColdSkipper(POLICY)
    play(watch, Load(easy=0.8), NOTES + 100)
    assert watch.state().state == "skipping"
    rng = np.random.default_rng(4)

    def strange() -> Verdict:
        """Lower scores than any query had before."""
        scores = np.sort(0.2 + 0.01 * rng.random(K))[::-1].astype(np.float32)
        return ask(watch, unit(rng), scores, 0.0)[0]

    asked = 0
    while watch.state().state == "skipping":
        assert strange().search
        asked += 1
    assert asked <= 4 * SHARE_QUERIES
    assert watch.state().stops == 1
    for _ in range(NOTES + 1):
        strange()
    assert watch.state().state == "skipping"
    assert sum(not strange().search for _ in range(100)) > 50


@pytest.mark.slow
def test_the_audit_does_not_cry_wolf() -> None:
    """Skipping goes on for as long as the load stays the same."""
    watch = ColdSkipper(POLICY, seed=3)
    load = Load(easy=0.8, hard_loss=0.3, hidden=0.005, seed=4)
    play(watch, load, NOTES)
    play(watch, load, 30_000)
    assert watch.state().stops == 0
    assert watch.state().audits > 500


def test_never() -> None:
    """A policy never to search says so of each query, and notes nothing."""
    query, scores, _ = Load(1.0).draw()
    watch = ColdSkipper(ColdPolicy("never"))
    assert decide(watch, query, scores) == Verdict(search=False, reason="cold policy is never")
    assert watch.state().state == "never"


def test_what_only_measures_teaches_nothing() -> None:
    """A query that does not count searches the lists alone while others are learned from, then skips as others do, and
    is never observed."""
    watch = ColdSkipper(ColdPolicy("calibrated", budget=0.005, audit=1.0))
    load = Load(1.0)
    query, scores, _ = load.draw()
    assert all(decide(watch, query, scores, counted=False) == Verdict(search=True) for _ in range(100))
    play(watch, load, NOTES + 500)
    verdicts = [decide(watch, *load.draw()[:2], counted=False) for _ in range(200)]
    assert sum(not one.search for one in verdicts) > 100
    assert not any(one.spared.by.observed for one in verdicts if one.spared is not None)


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> ColdSkipper:
    """The policy `auto`, which here knows after 1,000 queries observed."""
    monkeypatch.setattr(cold_skips, "NOTES", 1000)
    return ColdSkipper(ColdPolicy("auto", budget=0.02, audit=0.05))


def test_auto_observes_few_until_it_knows(auto: ColdSkipper) -> None:
    """One query in ten searches both ways while it learns; then those skip that may."""
    observed = sum(auto.sparing() is not None for _ in range(10_000))
    assert observed == pytest.approx(1000, rel=0.15)
    load = Load(0.9)
    assert play(auto, load, 5000) == (0.0, 0.0)
    play(auto, load, 6000)
    assert auto.state().state == "skipping"
    loss, skipped = play(auto, load, 2000)
    assert loss <= 0.02
    assert skipped >= 0.8


def test_auto_skips_nothing_where_that_takes_longer(auto: ColdSkipper) -> None:
    """Nine queries in ten may skip, but searching the hot tier takes as long as searching the lists."""
    assert play(auto, Load(0.9), 12_000, times=(0.9, 1.0)) == (0.0, 0.0)
    assert auto.state().state == "learning"


def test_what_another_rule_decided_teaches_nothing() -> None:
    """Nor does what was searched in another generation."""
    watch, load = ColdSkipper(POLICY, 7), Load(0.9)
    play(watch, load, NOTES)
    before = watch.state()
    assert before.state == "skipping"
    watch.learn(Spared(Sparing(7, observed=True), "searched", 0.5, 1.0))
    rule = watch.sparing()
    assert rule is not None
    watch.learn(Spared(replace(rule, generation=6), "skipped", 0.9, 1.0))
    assert watch.state() == before


def test_too_few_hits_are_never_enough() -> None:
    """A query for which the other tiers hold fewer than k passages always needs the cold one."""
    watch = ColdSkipper(POLICY)
    play(watch, Load(1.0), NOTES)
    query, scores, _ = Load(1.0).draw()
    assert decide(watch, query, scores[: K - 1]).search


def test_proof_needs_no_learning() -> None:
    """A query whose k-th score no member of any list can reach skips from the start; the bound is a true one."""
    rng = np.random.default_rng(5)
    centres = np.array([unit(rng) for _ in range(LISTS)])
    members = [centre + 0.05 * rng.normal(size=(50, DIMENSIONS)).astype(np.float32) for centre in centres]
    members = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in members]
    lowest = np.array([(each @ centre).min() for each, centre in zip(members, centres, strict=True)])
    known = ListBounds(centres, lowest.astype(np.float32))
    watch = ColdSkipper(POLICY)
    best = 0.0
    for _ in range(200):
        query = unit(rng)
        assert np.allclose(
            known.similarities(query), [unit_of(centre) @ query for centre in centres], atol=1e-5
        )
        best = max(float((each @ query).max()) for each in members)
        assert known.best_possible(known.similarities(query)) >= best - 1e-6
    scores = np.full(K, 0.999, np.float32)
    sparing = watch.sparing()
    assert sparing is not None
    verdict = judge(sparing, known, query, ranked(scores), K)
    assert not verdict.search
    assert "proven" in str(verdict.reason)
    assert judge(sparing, known, query, ranked(np.full(K, best - 0.01, np.float32)), K).search
    assert verdict.spared is not None
    watch.learn(verdict.spared)
    assert watch.state().proven == 1


def test_threads_may_share_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts stay exact when several threads decide and learn, wherever one interrupts another."""
    monkeypatch.setattr(cold_skips, "NOTES", 500)
    watch = ColdSkipper(ColdPolicy("calibrated", budget=0.05, audit=0.5))

    def play_traced(seed: int) -> list[tuple[Verdict, bool]]:
        load = Load(easy=1.0, seed=seed)
        sys.settrace(interrupted(random.Random(seed)))
        return [ask(watch, *load.draw()) for _ in range(300)]

    with ThreadPoolExecutor(4) as pool:
        verdicts = [one for each in pool.map(play_traced, range(4)) for one in each]
    skips = [observed for verdict, observed in verdicts if not verdict.search]
    state = watch.state()
    assert (state.state, state.stops) == ("skipping", 0)
    assert len(verdicts) - 4 <= state.queries <= len(verdicts)
    assert state.skipped == len(skips)
    assert state.audits == sum(skips)


def interrupted(rng: random.Random) -> Callable[[FrameType, str, object], Any]:
    """Traces a thread, and in the watch's own code lets others run after every tenth instruction or so.

    Left alone, Python hardly ever changes threads inside so short a function.
    """

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != cold_skips.__file__:
            return None
        frame.f_trace_opcodes = True
        if rng.random() < 0.1:
            time.sleep(0)
        return trace

    return trace


@pytest.mark.parametrize("size", [0.1, 0.3, 1.0])
def test_upper_bound_holds(size: float) -> None:
    """The true mean exceeds the bound no more often than promised."""
    rng = np.random.default_rng(7)
    count = 500
    draws = size * (rng.random((1000, count)) < 0.02)
    exceeded = np.mean([upper_mean(np.float64(losses.sum()), count) < 0.02 * size for losses in draws])
    assert exceeded <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / len(draws))


def test_upper_bound_shrinks_with_evidence() -> None:
    """More queries say more, greater losses allow less, and no mean is above one."""
    nothing = np.float64(0)
    assert upper_mean(nothing, 100) > upper_mean(nothing, 1000) > 0
    assert upper_mean(np.float64(10), 1000) > upper_mean(np.float64(5), 1000) > 0.005
    assert upper_mean(np.float64(5), 5) == 1.0


def chosen(margins: Any, losses: Any, budget: float) -> Rule | None:
    return Rule.chosen(np.stack([margins, losses], axis=1).astype(float), budget)


def test_threshold_skips_as_many_as_the_budget_allows() -> None:
    """One more query skipped would break the bound."""
    margins = -np.arange(2000) / 2000
    losses = (margins < -0.5).astype(float)
    rule = chosen(margins, losses, 0.008)
    assert rule is not None
    lost = float(losses[margins > rule.threshold].sum())
    assert lost >= 1
    assert upper_mean(np.float64(lost), 2000) <= 0.008 < upper_mean(np.float64(lost + 1), 2000)
    assert rule.bound() <= 0.0081
    assert chosen(margins, np.ones(2000), 0.001) is None


def test_equal_margins_skip_together() -> None:
    """Where not all queries of one margin fit into the budget, none of them skips."""
    margins, losses = np.repeat([0.2, 0.1], 1000), np.repeat([0.0, 0.02], 1000)
    rule = chosen(margins, losses, 0.006)
    assert rule is not None
    assert rule.threshold == 0.1, "some of the second thousand would still fit"
    assert chosen(np.full(2000, 0.3), losses, 0.006) is None


def test_margins_below_all_noted_never_skip() -> None:
    """Not even where nothing was ever lost."""
    rule = chosen(np.arange(1000) / 1000, np.zeros(1000), 0.006)
    assert rule is not None
    assert rule.threshold == 0
