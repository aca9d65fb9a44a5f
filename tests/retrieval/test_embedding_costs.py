"""The cost model, fed with runs whose true cost the test knows."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.embedding.costs import RUNS_TOGETHER, SURPRISE_MAX, CostModel, TextLoad

SHAPES = [(texts, longest) for texts in (1, 2, 4, 16) for longest in (8, 20, 60, 128, 256)]


def true_s(texts: int, longest: int) -> float:
    return 0.0004 + 0.00002 * texts * longest + 0.00000004 * texts * longest**2


def taught(
    runs: int = 300, *, noise: float = 0.1, factor: float = 1.0, model: CostModel | None = None
) -> CostModel:
    rng = np.random.default_rng(1)
    model = model or CostModel()
    for _ in range(runs):
        texts, longest = SHAPES[rng.integers(len(SHAPES))]
        model.learn(texts, longest, factor * true_s(texts, longest) * rng.normal(1, noise))
    return model


def worst(model: CostModel, factor: float = 1.0) -> float:
    """The largest relative error over all shapes."""
    return max(abs(model.seconds(*shape) / (factor * true_s(*shape)) - 1) for shape in SHAPES)


def test_learns_what_runs_cost() -> None:
    """After some hundred noisy runs every shape is foretold within a quarter."""
    assert worst(taught()) < 0.25


def test_runs_are_taken_in_together() -> None:
    """After the first ones, which count at once, so many runs change the estimate together."""
    model = CostModel()
    for _ in range(RUNS_TOGETHER):
        before = model.seconds(1, 10)
        model.learn(1, 10, 0.001)
        assert model.seconds(1, 10) != before
    known = model.seconds(1, 10)
    for _ in range(RUNS_TOGETHER - 1):
        model.learn(1, 10, 0.002)
        assert model.seconds(1, 10) == known
    model.learn(1, 10, 0.002)
    assert known < model.seconds(1, 10) < 0.002


def test_follows_a_machine_that_slows_down() -> None:
    """When all runs take twice as long, so do the predictions before long."""
    assert worst(taught(600, factor=2, model=taught()), factor=2) < 0.3


def test_one_shape_alone_is_learnt() -> None:
    """Thousands of runs of a single shape neither break the model nor make it forget what that shape costs."""
    model = CostModel()
    for _ in range(5000):
        model.learn(1, 12, 0.001)
    assert model.seconds(1, 12) == pytest.approx(0.001, rel=0.02)
    assert 0 <= model.seconds(4, 256) < 10
    taught(300, model=model)
    assert worst(model) < 0.3


def test_a_run_held_up_is_not_believed() -> None:
    """One run that took a thousand times too long moves the prediction by less than the bound on surprise."""
    model = taught()
    before = model.seconds(1, 12)
    model.learn(1, 12, before * 1000)
    assert model.seconds(1, 12) < SURPRISE_MAX * before


def test_never_negative() -> None:
    """Runs that seem to get cheaper with length do not lead to negative costs."""
    model = CostModel()
    for longest in (8, 256) * 50:
        model.learn(1, longest, 0.004 if longest == 8 else 0.001)
    assert min(model.base, model.per_token, model.per_square) >= 0


def test_load_is_the_sum_of_its_texts() -> None:
    """What waits costs what its texts would cost one by one; taking texts out again leaves nothing."""
    model, load = taught(), TextLoad()
    for length in (5, 12, 200):
        load.add(length)
    assert model.seconds_of(load) == pytest.approx(sum(model.seconds(1, length) for length in (5, 12, 200)))
    for length in (200, 5, 12):
        load.add(length, -1)
    assert load == TextLoad()
