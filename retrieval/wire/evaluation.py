"""The wire types of a collection's last evaluation."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from retrieval.wire.search import Doc, Request

ReportJson = Annotated[
    msgspec.Raw,
    Meta(
        description="A report, as `nearline evaluate --json` prints it",
        extra_json_schema={"type": "object"},
    ),
]


class KeepEvaluation(Request, frozen=True, kw_only=True):
    report: ReportJson


class EvaluationBody(msgspec.Struct):
    """An evaluation report, kept as it was sent."""

    received_ms: Annotated[int, Doc("Unix time of its arrival in milliseconds")]
    report: ReportJson
