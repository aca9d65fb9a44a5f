"""What is too low, and what became worse than it was by more than chance."""

from __future__ import annotations

from collections.abc import Sequence

from indexes.errors import InvalidInput
from jobs.evaluation.report import Cohort, Floors, Report, Worse

KINDS = ("tier", "age", "filter", "tenant")
NAMES = (
    "overall", "delta", "hot", "cold", "newest", "older",
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
    """In words. The general floor holds overall and in each tier; nothing measured at all is too low as well."""
    if report.recall.overall is None:
        return ["nothing was measured: the collection has no passages or there were no queries"]
    below = []
    for one in report.cohorts:
        floor = floor_of(one, floors)
        if floor is not None and one.recall < floor:
            below.append(f"recall@{report.k} {one.name} is {one.recall:.4f}, below {floor}")
    for name, scores in report.rankings.items():
        if name.startswith("hybrid") and scores["ndcg@10"] < floors.ndcg:
            below.append(f"nDCG@10 of {name} is {scores['ndcg@10']:.4f}, below {floors.ndcg}")
    return below


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
    for name, scores in now.ranking_intervals.items():
        for label, score in scores.items():
            known = before.ranking_intervals.get(name, {}).get(label)
            if known is not None and known.value - score.value > least and score.high < known.low:
                worse.append(Worse(f"{label} {name}", known.value, score.value))
    return worse
