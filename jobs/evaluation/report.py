"""The content of a report: `--json` prints it, a history keeps it, and tables, page and gauges show it."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from indexes.rebuild.shares import share_interval

VERSION = 2
METHOD = "95 percent: Wilson's, for as many trials as the queries' spread is worth"

CohortKind = Literal["overall", "tier", "age", "filter", "tenant"]
Source = Literal["query log", "file", "sampled passages"]


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over queries with its 95 percent confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def mean(cls, values: ArrayLike) -> Score:
        """The mean of one value between 0 and 1 for each query [n]."""
        value, low, high = share_interval(values, np.ones_like(values, np.float64))
        return cls(value=value, low=low, high=high)

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.3f}-{self.high:.3f})"


class Cohort(Score, frozen=True, kw_only=True):
    """Recall of a subset of the true neighbors, or under a filter that `share` of the passages match."""

    value: float = msgspec.field(name="recall")
    name: str
    kind: CohortKind
    queries: int
    neighbours: int
    detail: str = ""
    share: float | None = None


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Hits whose relevance is from `since` to a tenth above: the mean, and the share that is judged relevant."""

    since: float
    hits: int
    relevance: float
    relevant: float


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """How reliable relevance is. `calibration_error` is the mean distance of `relevance` and `relevant` over the hits.

    Of the questions with a relevant hit, `lost` is the share without evidence and `strong` the share with strong
    evidence, None if there are none; `false` is the share of all with strong evidence once what is relevant is dropped
    from their hits. Each by its own `evidence_from`.
    """

    calibration_error: float
    lost: Score | None
    false: Score
    strong: Score | None
    bins: list[Bin]


class Report(msgspec.Struct, kw_only=True):
    """One evaluation. `time` is in UTC; `regressions` is relative to the report of `compared_with`.

    `asked` is a digest that tells files of queries apart, empty for random queries. `offline`: over a data directory
    without a service, where nothing has learned yet when to skip the cold tier. `not_measured` maps cohorts to reasons,
    `contexts` maps token budgets to the share of queries whose context shows a relevant document. `latency_ms` is by
    kind of search, stage and percentile. Of `judged` documents, `judged_missing` are not in the collection, so no
    search can return them.
    """

    version: int = VERSION
    time: str
    took_s: float = 0.0
    collection: str
    model: str
    generation: int
    seq: int | str
    changed_meanwhile: bool = False
    documents: int
    passages: dict[str, int]
    source: Source
    asked: str
    offline: bool
    queries: int
    k: int
    seed: int
    cohorts: list[Cohort] = []
    not_measured: dict[str, str] = {}
    rankings: dict[str, dict[str, Score]] = {}
    contexts: dict[str, Score] = {}
    relevance: Reliability | None = None
    judged: int = 0
    judged_missing: int = 0
    latency_ms: dict[str, dict[str, dict[str, float]]] = {}
    cold_skipped: int = 0
    floors: dict[str, float] = {}
    below: list[str] = []
    compared_with: str | None = None
    regressions: list[str] = []

    def cohort(self, name: str) -> Cohort | None:
        return next((one for one in self.cohorts if one.name == name), None)

    def scores(self) -> dict[str, Score]:
        """Every recall and ranking score by its full name, such as `recall@10 cold`."""
        recalls: dict[str, Score] = {f"recall@{self.k} {one.name}": one for one in self.cohorts}
        ranked = {
            f"{label} {search}": score
            for search, scores in self.rankings.items()
            for label, score in scores.items()
        }
        return recalls | ranked

    def headline(self) -> str:
        overall = self.cohort("overall")
        return "nothing was measured" if overall is None else f"recall@{self.k} {overall.value:.4f}"

    def facts(self) -> str:
        return (
            f"{self.time[:16].replace('T', ' ')} UTC, generation {self.generation}, seq {self.seq}, {self.model}, "
            f"{self.documents} documents, {sum(self.passages.values())} passages, "
            f"{self.queries} queries ({self.source}), {self.took_s:g} s"
        )

    def trouble(self) -> list[str]:
        """Warnings for the reader, in words."""
        changed = ["the collection changed while it was measured"] if self.changed_meanwhile else []
        return changed + self.regressions + self.below
