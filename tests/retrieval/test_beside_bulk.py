"""What others write while a bulk load is embedded: a service whose encoder takes its time for long texts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from indexes.base.model import Floats
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.tokens import Tokens
from retrieval.handlers.state import GATES
from tests.retrieval.test_off_loop import Ask, with_service

LONG, RUN_S, ROUNDS = 100, 0.15, 5
TEXT = (
    "Who has much to write does not keep those waiting who have little. " * 3000
)  # 200 kB, about 300 passages


@pytest.mark.model
def test_small_writes_pass_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path
) -> None:
    """Beside two requests that take most of a minute, lines, collections, feedback and deletions are all accepted, and
    done before the first of the two. When the writers of those leave, their passages leave the queue, and no part of
    their documents is there."""
    runs: list[int] = []  # the longest text of each

    def run(encoder: Encoder, batch: Sequence[Tokens]) -> Floats:
        runs.append(max(map(len, batch)))
        if runs[-1] > LONG:
            time.sleep(RUN_S)
        vectors = np.ones((len(batch), encoder.dimensions), np.float32)
        return vectors / np.sqrt(np.float32(encoder.dimensions))

    monkeypatch.setattr(Encoder, "run", run)

    async def story(app: web.Application, ask: Ask) -> None:
        async def write(collection: str, document: str, text: str) -> None:
            body = {"documents": [{"id": document, "text": text}]}
            await ask("POST", f"/v1/collections/{collection}/documents", body)

        def under_way() -> int:
            return next(number for load, number, _ in app[GATES].under_way() if load == "write")

        await ask("POST", "/v1/collections", {"name": "docs"})
        await write("docs", "known", "a line")
        large = [asyncio.create_task(write("docs", f"large {at}", f"{at} {TEXT}")) for at in range(2)]
        begun = len(runs)
        while len(runs) < begun + 10:  # noqa: ASYNC110 - runs begin on other threads
            await asyncio.sleep(0.01)
        for at in range(ROUNDS):
            await write("docs", f"small {at}", "another line")
            await ask("POST", "/v1/collections", {"name": f"c{at}"})
            graded = {"query": "line", "document_id": "known", "grade": 1}
            await ask("POST", "/v1/collections/docs/feedback", {"feedback": [graded]})
            await ask("POST", "/v1/collections/docs/documents/delete", {"ids": [f"small {at}"]})
        assert not any(one.done() for one in large)
        for one in large:
            one.cancel()
        while under_way():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        left = len(runs) + 2  # those that workers had begun
        await write("docs", "last", "the last line")
        assert max(runs[left:], default=0) <= LONG
        listed = await ask("GET", "/v1/collections/docs/documents")
        assert (b'"known"' in listed, b'"last"' in listed, b"large" in listed) == (True, True, False)

    with_service(tmp_path / "data", story)
