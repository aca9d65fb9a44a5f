"""Load on your own collection by Locust (https://locust.io), with checks of every answer:

    pip install locust
    NEARLINE_COLLECTION=docs NEARLINE_KEY=nl_... locust -f locustfile.py --host http://127.0.0.1:8080 \
        --headless --users 16 --spawn-rate 4 --run-time 60s

NEARLINE_QUERIES names a file with a question on each line, NEARLINE_DEADLINE_MS is what callers wait (1000), and
NEARLINE_RATE how often each user asks in a second (2). NEARLINE_WRITES=1 also writes documents `load-...` into the
collection, which stay there: use a collection for it.

Refusals (429, 503) get rows of their own, and fail only without Retry-After. The stages that the header Server-Timing
tells are rows of the type "stage". Users of Locust wait for their answers, so a slow service is asked less; k6.js
beside this file asks at a fixed rate.
"""

from __future__ import annotations

import os
import random
import uuid
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, task

COLLECTION = os.environ.get("NEARLINE_COLLECTION", "docs")
KEY = os.environ.get("NEARLINE_KEY", "")
QUERIES = os.environ.get("NEARLINE_QUERIES", "")
DEADLINE_MS = int(os.environ.get("NEARLINE_DEADLINE_MS", "1000"))
RATE = float(os.environ.get("NEARLINE_RATE", "2"))
WRITES = os.environ.get("NEARLINE_WRITES") == "1"

QUESTIONS = (
    Path(QUERIES).read_text().splitlines() if QUERIES else ["refund", "opening hours", "how do I start"]
)
STAGES = {"search": {"embed", "dense", "lexical", "total"}, "context": {"embed", "total"}, "write": set()}


class Caller(FastHttpUser):
    """Searches mostly, sometimes asks for a context, and seldom writes."""

    wait_time = constant_throughput(RATE)

    @task(18)
    def searching(self) -> None:
        self.ask("search", {"query": random.choice(QUESTIONS), "deadline_ms": DEADLINE_MS, "cache": False})

    @task(2)
    def reading(self) -> None:
        self.ask(
            "context", {"query": random.choice(QUESTIONS), "deadline_ms": DEADLINE_MS, "token_budget": 1000}
        )

    @task(1)
    def writing(self) -> None:
        if WRITES:
            document = {"id": f"load-{uuid.uuid4()}", "text": random.choice(QUESTIONS)}
            self.ask("write", {"documents": [document]}, path="documents")

    def ask(self, name: str, body: dict[str, Any], path: str | None = None) -> None:
        """POST to the collection; the answer is one with hits in stages, or a refusal that says when to come back."""
        with self.client.post(
            f"/v1/collections/{COLLECTION}/{path or name}",
            json=body,
            name=name,
            headers={"Authorization": f"Bearer {KEY}"} if KEY else {},
            catch_response=True,
        ) as answer:
            if answer.status_code in (429, 503):
                answer.request_meta["name"] = f"{name}, refused"
                if "Retry-After" in answer.headers:
                    answer.success()
                else:
                    answer.failure(f"{answer.status_code} without Retry-After")
            elif answer.status_code != 200:
                answer.failure(f"{answer.status_code}: {(answer.text or '')[:200]}")
            else:
                self.note(name, answer)

    def note(self, name: str, answer: Any) -> None:
        """Record the stages; an answer without those it must have fails."""
        timing = answer.headers.get("Server-Timing", "")
        stages = dict(part.split(";dur=") for part in timing.split(", ")) if timing else {}
        if missing := STAGES[name] - set(stages):
            answer.failure(f"Server-Timing lacks {', '.join(sorted(missing))}")
            return
        for stage, ms in stages.items():
            self.environment.events.request.fire(
                request_type="stage",
                name=f"{name}, {stage}",
                response_time=float(ms),
                response_length=0,
                exception=None,
                context={},
            )
