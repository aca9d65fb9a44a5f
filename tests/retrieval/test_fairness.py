"""A hostile key beside a good one, in every class of requests: it harms itself alone."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest

from retrieval.admission.gates import Load
from tests.support.guarded import Caller, Guarded, guarded_service
from tests.support.language_models import fake_model, says

PLACES = 8  # of each class
TOKENS = 12_000  # that wait to be embedded: of fewer requests than there are places
SLOW = 24  # bodies that do not come
BUSY = 12  # requests of the hostile key at one time
ASKED = 10  # by the good one, one after the other
ANSWERED = 8
MODEL = "all-MiniLM-L6-v2"
DOCS = "/v1/collections/docs"
WORDS = ["iron", "copper", "tin", "lead", "zinc", "silver", "gold", "nickel", "cobalt", "chrome"]
LONG = " ".join(WORDS * 50)


@dataclass(frozen=True)
class Case:
    """What the good key sends, and what floods the class."""

    path: str
    good: dict[str, Any]
    flood: dict[str, Any]


CASES: dict[Load, Case] = {
    "search": Case(f"{DOCS}/search", {"query": "iron"}, {"query": LONG, "k": 500, "cache": False}),
    "heavy": Case(
        f"{DOCS}/search/batch",
        {"searches": [{"query": "iron"}]},
        {"searches": [{"query": f"{word} {LONG}", "k": 100, "cache": False} for word in WORDS]},
    ),
    "embed": Case(
        "/v1/embeddings",
        {"model": MODEL, "input": "iron"},
        {"model": MODEL, "input": [f"{word} {LONG}" for word in WORDS]},
    ),
    "write": Case(
        f"{DOCS}/documents",
        {"documents": [{"id": "one", "text": "iron"}]},
        {"documents": [{"id": f"large-{at}", "text": f"{at} {LONG}"} for at in range(4)]},
    ),
    "change": Case(
        f"{DOCS}/documents/delete", {"ids": ["absent"]}, {"ids": [f"absent-{at}" for at in range(1000)]}
    ),
    "answer": Case(f"{DOCS}/answer", {"query": "iron"}, {"query": LONG}),
    "watch": Case(f"{DOCS}/watch", {"query": "iron"}, {"query": "tin"}),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    with fake_model() as model:
        model.reply = says("Iron", " [1].", wait_s=0.05)
        classes = ("SEARCHES", "WRITES", "CHANGES", "EMBEDS", "HEAVY", "ANSWERS", "WATCHES")
        environ = {
            "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
            "NEARLINE_EMBEDDING_QUEUE_TOKENS_MAX": str(TOKENS),
            "NEARLINE_LLM_BASE_URL": model.url,
            "NEARLINE_LLM_MODEL": "fake",
            **{f"NEARLINE_ADMISSION_{name}_MAX": str(PLACES) for name in classes},
        }
        with guarded_service(tmp_path_factory.mktemp("fair") / "data", environ) as one:
            admin = one.caller("admin")
            admin.ok("POST", "/v1/collections", {"name": "docs"})
            admin.write(
                "docs", *({"id": f"d{at}", "text": f"{word} {at}"} for at, word in enumerate(WORDS * 20))
            )
            yield one


@pytest.fixture(scope="module")
def good(guarded: Guarded) -> Caller:
    return guarded.caller("search", "write")


@pytest.fixture(scope="module")
def hostile(guarded: Guarded) -> Caller:
    return guarded.caller("search", "write")


@contextlib.contextmanager
def sent(caller: Caller, path: str, body: bytes, length: int) -> Iterator[HTTPConnection]:
    """A request whose body should have `length` bytes, with those of `body`."""
    at = urlsplit(caller.url)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=60)
    try:
        connection.putrequest("POST", path)
        connection.putheader("Authorization", f"Bearer {caller.token}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(length))
        connection.endheaders(body)
        yield connection
    finally:
        connection.close()


def status(caller: Caller, path: str, wanted: dict[str, Any]) -> int:
    """Of an answer, or of the beginning of a stream."""
    body = json.dumps(wanted).encode()
    with sent(caller, path, body, len(body)) as connection:
        return connection.getresponse().status


@contextlib.contextmanager
def slow_bodies(caller: Caller, path: str) -> Iterator[None]:
    """Of which one byte has come: small ones, and some that announce megabytes."""
    with contextlib.ExitStack() as stack:
        for length in [100] * SLOW + [30_000_000] * SLOW:
            stack.enter_context(sent(caller, path, b"{", length))
        for _ in range(2):  # by then the service has read their heads
            caller.call("GET", "/healthz")
        yield


@contextlib.contextmanager
def flooding(caller: Caller, load: Load) -> Iterator[list[int]]:
    """As many requests at one time as the hostile key can; watches are kept open. The statuses, as they come."""
    case, statuses, over = CASES[load], list[int](), threading.Event()
    begun = threading.Barrier(BUSY + 1)
    body = json.dumps(case.flood).encode()

    def send() -> None:
        begun.wait(60)
        while not over.is_set():
            with sent(caller, case.path, body, len(body)) as connection:
                reply = connection.getresponse()
                statuses.append(reply.status)
                if load == "watch" and reply.status == 200:
                    over.wait(60)
                elif load != "watch":
                    reply.read()
            over.wait(0.01 if statuses[-1] == 429 else 0)

    threads = [threading.Thread(target=send) for _ in range(BUSY)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    try:
        while len(statuses) < BUSY // 2:
            over.wait(0.01)
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.parametrize("load", get_args(Load))
def test_slow_bodies_take_no_place(good: Caller, hostile: Caller, load: Load) -> None:
    """However many requests of another key have sent a head and one byte, and whatever size they announce."""
    case = CASES[load]
    with slow_bodies(hostile, case.path):
        statuses = [status(good, case.path, case.good) for _ in range(ASKED)]
    assert statuses == [200] * ASKED


@pytest.mark.parametrize("load", get_args(Load))
def test_a_flood_leaves_others_their_share(good: Caller, hostile: Caller, load: Load) -> None:
    """One key asks for more than the class has places for; of the requests of another four in five are answered."""
    case = CASES[load]
    with flooding(hostile, load) as flood:
        statuses = [status(good, case.path, case.good) for _ in range(ASKED)]
    assert {200, 429} == set(flood), flood  # more than there are places, and some of it was work
    assert statuses.count(200) >= ANSWERED, (statuses, flood)
