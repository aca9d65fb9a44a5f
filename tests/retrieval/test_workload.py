"""The time that work under way will take, foretold while it runs: with a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from retrieval.admission.workload import Task, Workload

MEGABYTE, PER_S = 1_100_000, 22_000


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Service:
    """Embeds at PER_S bytes a second, in slices of a tenth of a second that its tasks share evenly."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.workload = Workload(self.clock)
        self.tasks: dict[Task, tuple[float, float]] = {}  # size, and what is left

    def begin(self, size: int) -> Task:
        task = self.workload.begin(size)
        self.tasks[task] = size, size
        return task

    def run(self, seconds: float) -> list[Task]:
        """The tasks that ended."""
        ended = []
        for _ in range(round(seconds * 10)):
            self.clock.now += 0.1
            share = PER_S * 0.1 / max(1, len(self.tasks))
            for task, (size, left) in list(self.tasks.items()):
                self.tasks[task] = size, left - share
                task.advance(min(1.0, 1 - (left - share) / size))
                if left <= share:
                    self.workload.end(task, done=True)
                    del self.tasks[task]
                    ended.append(task)
        return ended

    @property
    def true_wait_s(self) -> float:
        return sum(left for _, left in self.tasks.values()) / PER_S


def test_the_estimate_is_right_from_the_first_slices_on() -> None:
    """Three requests of 1.1 MB take 150 s, small ones come and go beside them: at every moment the estimate is within a
    factor of two of the truth, although none of the large ones is done before the end."""
    service = Service()
    for _ in range(3):
        service.begin(MEGABYTE)
    service.run(1)
    while service.true_wait_s > 1:
        assert service.true_wait_s / 2 < service.workload.wait_s < 2 * service.true_wait_s
        small = service.begin(1100)
        assert service.run(1) == [small] or service.true_wait_s < 2


def test_small_tasks_pass_large_ones() -> None:
    """A task is held up by what each other one does until it is itself done, not by all that is left of them."""
    service = Service()
    for _ in range(10):
        service.begin(MEGABYTE)
    service.run(1)
    assert service.workload.wait_s == pytest.approx(10 * MEGABYTE / PER_S, rel=0.1)
    assert service.workload.delay_s(1100) == pytest.approx(10 * 1100 / PER_S, rel=0.1)
    assert service.workload.delay_s(MEGABYTE) == pytest.approx(service.workload.wait_s)


def test_what_turns_out_to_be_no_work_says_nothing_about_the_pace() -> None:
    """Documents that are there already leave the account without being counted as done."""
    clock = Clock()
    workload = Workload(clock)
    learnt = workload.begin(1000)
    clock.now += 1
    workload.end(learnt, done=True)
    known = workload.begin(10**9)
    clock.now += 0.001
    known.expect(0)
    workload.end(known, done=True)
    workload.begin(5000)
    assert workload.wait_s == pytest.approx(5, rel=0.01)


def test_a_request_may_turn_out_to_be_large() -> None:
    """One that names a file of a megabyte counts as a megabyte."""
    clock = Clock()
    workload = Workload(clock)
    task = workload.begin(100)
    task.expect(1000)
    clock.now += 1
    task.advance(0.5)
    assert workload.wait_s == pytest.approx(1)


def test_an_abandoned_task_leaves_no_work() -> None:
    """Nor does it count as done; what it still says is ignored."""
    clock = Clock()
    workload = Workload(clock)
    task = workload.begin(1000)
    clock.now += 1
    task.advance(0.1)
    workload.end(task, done=False)
    task.advance(0.9)
    task.expect(10**6)
    assert workload.wait_s == 0
    workload.begin(1000)
    assert workload.wait_s == pytest.approx(10)


def test_another_caller_costs_no_more_than_ones_own_tasks() -> None:
    """However much it has: a newcomer is held up by its own size, and one with a task by that, too."""
    service = Service()
    for _ in range(10):
        service.workload.begin(MEGABYTE, "greedy")
    service.begin(PER_S)
    service.run(1)
    assert service.workload.delay_s(MEGABYTE, "new") == pytest.approx(MEGABYTE / PER_S, rel=0.1)
    service.workload.begin(MEGABYTE, "new")
    assert service.workload.delay_s(MEGABYTE, "new") == pytest.approx(3 * MEGABYTE / PER_S, rel=0.1)
