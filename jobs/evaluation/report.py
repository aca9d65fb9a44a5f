"""The shape of a report: what `--json` prints, what a history keeps, what every way of showing it reads."""

from __future__ import annotations

from typing import Literal

import msgspec

VERSION = 1

CohortKind = Literal["overall", "tier", "age", "filter", "tenant"]
Source = Literal["query log", "file", "sampled passages"]
Percentiles = dict[str, float]


class Cohort(msgspec.Struct, frozen=True, kw_only=True):
    """Recall of some of the true neighbours, or under some filter, with its 95 percent interval.

    `share` is how much of the collection a filter lets through.
    """

    name: str
    kind: CohortKind
    recall: float
    low: float
    high: float
    queries: int
    neighbours: int
    detail: str = ""
    share: float | None = None


class NotMeasured(msgspec.Struct, frozen=True):
    cohort: str
    reason: str


class RankingScore(msgspec.Struct, frozen=True):
    value: float
    low: float
    high: float


class ContextScore(msgspec.Struct, frozen=True, kw_only=True):
    """Contexts of one token budget: share of the queries whose context shows a relevant document, with its 95 percent
    interval; on average so many documents in so many tokens."""

    budget: int
    coverage: float
    low: float
    high: float
    documents: float
    tokens: float


class Judged(msgspec.Struct, frozen=True):
    """Documents with judgements; `missing` ones are not in the collection, so no search can return them.

    `queries_without` are judged queries of which no relevant document is there: they count, with 0.
    """

    documents: int
    missing: int
    queries: int
    queries_without: int


class Cold(msgspec.Struct, frozen=True):
    """How often the unfiltered dense searches left the cold tier out, and why, in the receipts' words."""

    searches: int
    skipped: int
    share: float
    reasons: dict[str, int]


class CacheRate(msgspec.Struct, frozen=True):
    """Share of lookups that hit: since the service started, and while this ran. None where there were none."""

    since_start: float | None
    meanwhile: float | None


class Floors(msgspec.Struct, frozen=True):
    recall: float
    ndcg: float = msgspec.field(name="ndcg@10")
    cohorts: dict[str, float] = {}


class Worse(msgspec.Struct, frozen=True):
    """A cohort, or a ranking's score, that is lower than in the report before, beyond what chance explains."""

    what: str
    before: float
    now: float


class Report(msgspec.Struct, kw_only=True):
    """One evaluation. Times in milliseconds, `time` in UTC; `regressions` is compared with `compared_with`.

    `asked` tells files of queries apart; of queries that are drawn anew each time it is empty. `offline`: over a
    data directory that nobody served, where nothing has learned yet when to leave the cold tier out.
    """

    version: int = VERSION
    time: str
    took_s: float
    collection: str
    model: str
    generation: int
    seq: int
    changed_meanwhile: bool
    documents: int
    passages: dict[str, int]
    source: Source
    asked: str
    offline: bool
    queries: int
    k: int
    seed: int
    interval: str
    cohorts: list[Cohort]
    not_measured: list[NotMeasured]
    rankings: dict[str, dict[str, RankingScore]]
    contexts: list[ContextScore] = []
    judged: Judged | None
    latency_ms: dict[str, dict[str, Percentiles]]
    cold: Cold
    caches: dict[str, CacheRate]
    floors: Floors | None = None
    below: list[str] = []
    compared_with: str | None = None
    regressions: list[Worse] = []

    def cohort(self, name: str) -> Cohort | None:
        return next((one for one in self.cohorts if one.name == name), None)
