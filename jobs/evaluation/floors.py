"""What is too low, and what became worse than it was by more than chance."""

from __future__ import annotations

from collections.abc import Sequence

from indexes.errors import InvalidInput
from indexes.model import TIERS
from jobs.evaluation.report import Cohort, Floors, Report, Worse

KINDS = ("tier", "age", "filter", "tenant")
NAMES = (
    "overall", *TIERS, "newest", "older",
    "filter-10", "filter-1", "filter-0.1", "filter-logged",
)  # fmt: skip


def parse_floors(given: Sequence[str]) -> dict[str, float]:
    """`cold=.97` by cohort, `filter=.9` by kind, `tenant=acme=.9` for one tenant. Raises InvalidInput."""
    floors = {}
    for one in given:
        name, equals, number = one.rpartition("=")
        known = name in NAMES or name in KINDS or name.startswith("tenant=")
        try:
            floor = float(number)
        except ValueError:
            floor = -1.0
        if not equals or not known or not 0 <= floor <= 1:
            names = ", ".join((*NAMES, *KINDS, "tenant=VALUE"))
            raise InvalidInput(
                f"{one!r} is no floor; expected NAME=NUMBER, the number from 0 to 1, NAME one of {names}",
                param="floor",
            )
        floors[name] = floor
    return floors


def below_floors(report: Report, floors: Floors) -> list[str]:
    """In words. The general floor holds overall and in each tier.

    Nothing measured at all is too low as well, and so is what has a floor of its own and was not measured.
    """
    if report.cohort("overall") is None:
        return ["nothing was measured: the collection has no passages or there were no queries"]
    below = [
        f"recall@{report.k} {one.name} is {one.recall:.4f}, below {floor_of(one, floors)}"
        for one in report.cohorts
        if is_below(one, floors)
    ]
    measured = {name for one in report.cohorts for name in (one.name, one.kind)}
    below += [
        f"recall@{report.k} {name} was not measured, its floor is {floor}"
        for name, floor in floors.cohorts.items()
        if name not in measured
    ]
    if floors.ndcg and not report.rankings:
        below.append(f"nDCG@10 was not measured, its floor is {floors.ndcg}")
    for name, scores in report.rankings.items():
        if name.startswith("hybrid") and scores["ndcg@10"].value < floors.ndcg:
            below.append(f"nDCG@10 of {name} is {scores['ndcg@10'].value:.4f}, below {floors.ndcg}")
    return below


def is_below(cohort: Cohort, floors: Floors | None) -> bool:
    floor = floor_of(cohort, floors) if floors else None
    return floor is not None and cohort.recall < floor


def floor_of(cohort: Cohort, floors: Floors) -> float | None:
    """The one for its name, else for its kind, else the general one where that holds."""
    general = floors.recall if cohort.kind in ("overall", "tier") else None
    return floors.cohorts.get(cohort.name, floors.cohorts.get(cohort.kind, general))


def became_worse(before: Report, now: Report, least: float) -> list[Worse]:
    """Recalls and ranking scores that fell by more than `least` and whose intervals do not overlap."""
    worse = []
    for one in now.cohorts:
        old = before.cohort(one.name)
        if old is not None and old.recall - one.recall > least and one.high < old.low:
            worse.append(Worse(f"recall@{now.k} {one.name}", old.recall, one.recall))
    for name, scores in now.rankings.items():
        for label, score in scores.items():
            known = before.rankings.get(name, {}).get(label)
            if known is not None and known.value - score.value > least and score.high < known.low:
                worse.append(Worse(f"{label} {name}", known.value, score.value))
    return worse
