"""The wire types of jobs: rebuilds, tunings and erasures, what they are asked and what they report."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from retrieval.schemas import Capacity, Request

JobStatus = Literal["queued", "running", "succeeded", "failed", "refused"]


class Reindex(Request, frozen=True, kw_only=True):
    hot_capacity: Capacity | None = None


class Tune(Request, frozen=True, kw_only=True):
    """Find the cheapest search settings of this recall@10, by these queries or by made-up ones; `apply` uses them."""

    recall_target: Annotated[float, Meta(gt=0, le=1)]
    queries: list[str] | None = None
    apply: bool = True


class JobStarted(msgspec.Struct):
    job: str


class JobProgress(msgspec.Struct):
    stage: str = "waiting"
    done: int = 0
    total: int = 0


class JobBody(msgspec.Struct):
    id: str
    kind: str
    collection: str
    status: JobStatus
    progress: JobProgress
    created_ms: int
    finished_ms: int | None = None
    result: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class JobList(msgspec.Struct):
    jobs: list[JobBody]


class Nothing(Request, frozen=True, kw_only=True):
    """A body without fields."""


class RolledBack(msgspec.Struct):
    generation: int
