"""Frequent searches: which they are, and that they are made again after a swap and a start."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.serving.process import log_of, serving
from retrieval.access.auth import PRINCIPAL, Principal
from retrieval.upkeep.frequent import HALVED_EVERY_S, LOOK_EVERY_S, Frequent
from retrieval.wire.search import SearchRequest
from tests.support.guarded import guarded_service
from tests.support.http import Http

MOST = 5
DOCUMENTS = [{"id": f"d{at}", "text": f"Lighthouse {at} stands on rock {at}."} for at in range(8)]


def collection(opening: bytes = b"one") -> Any:
    return SimpleNamespace(opening=opening)


@given(st.lists(st.integers(0, 12), max_size=200))
def test_a_search_asked_more_often_than_its_share_is_known(asked: list[int]) -> None:
    """Whatever came more often than one in MOST is among those kept, and no more than MOST are."""
    frequent = Frequent(MOST)
    for one in asked:
        frequent.note(collection(), SearchRequest(query=str(one)))
    kept = {one.request.query for one in frequent.of(collection())}
    assert len(kept) <= MOST
    for one, count in Counter(asked).items():
        if count > len(asked) / MOST:
            assert str(one) in kept


def test_what_is_not_cached_is_not_counted() -> None:
    """Nor what bypasses the cache, a later page, an exact search; a deadline makes no other search."""
    frequent, one = Frequent(MOST), collection()
    for request in (
        SearchRequest(query="a", cache=False),
        SearchRequest(query="a", exact=True),
        SearchRequest(query="a", offset=10),
    ):
        frequent.note(one, request)
    assert frequent.of(one) == []
    for request in (SearchRequest(query="a"), SearchRequest(query="a", deadline_ms=50, min_seq=3)):
        frequent.note(one, request)
    assert [asked.count for asked in frequent.of(one)] == [2]


def test_huge_searches_are_not_kept() -> None:
    """Nor the whole body that a filter came in: a view of it would keep it from being freed."""
    frequent, one = Frequent(MOST), collection()
    filtered = b'{"type":"in","key":"k","value":["a"]}'
    body = bytearray(filtered + b" " * 100_000)
    frequent.note(one, SearchRequest(query="a", filter=msgspec.Raw(memoryview(body)[: len(filtered)])))
    body.clear()  # raises BufferError while something views it
    frequent.note(
        one, SearchRequest(query="b", filter=msgspec.Raw(b'{"type":"in","value":"%s"}' % (b"x" * 9000)))
    )
    (kept,) = frequent.of(one)
    assert kept.request.query == "a"
    assert bytes(kept.request.filter) == filtered


def test_callers_are_kept_apart_and_the_past_fades() -> None:
    """The same text of two tenants is two searches; counts halve every hour; a closed collection is forgotten."""
    now = SimpleNamespace(s=0.0)
    frequent, one = Frequent(MOST, lambda: cast(float, now.s)), collection()
    for tenant in ("acme", "acme", "umbra"):
        token = PRINCIPAL.set(Principal(tenant=tenant))
        frequent.note(one, SearchRequest(query="a"))
        PRINCIPAL.reset(token)
    now.s += HALVED_EVERY_S + 1
    frequent.tidy([one])
    assert [(asked.caller.tenant, asked.count) for asked in frequent.of(one)] == [
        ("acme", 1.0),
        ("umbra", 0.5),
    ]
    frequent.tidy([])
    assert frequent.of(one) == []


@pytest.mark.slow
def test_a_swap_begins_warm(tmp_path: Path, model_folder: Path) -> None:
    """After a rebuild the searches asked before are answered from the cache, also those of a key with groups."""
    with guarded_service(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as guarded:
        admin = guarded.caller("admin")
        reader = guarded.caller("search", groups=["ops"])
        admin.ok("POST", "/v1/collections", {"name": "docs"})
        admin.write("docs", *DOCUMENTS)
        time.sleep(1.5 * LOOK_EVERY_S)  # it has been seen once
        for caller in (admin, reader):
            caller.search("docs", query="lighthouse on a rock")
        admin.reindex("docs")
        deadline = time.monotonic() + 30
        while "repeated 2 frequent searches" not in log_of(guarded.data).read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for caller in (admin, reader):
            receipt = caller.search("docs", query="lighthouse on a rock")["receipt"]
            assert (receipt["cache"], receipt["generation"]) == ("hit", 1)


@pytest.mark.slow
def test_a_start_is_warm_with_the_query_log(tmp_path: Path, model_folder: Path) -> None:
    """The log's queries are searched in the background; without the log nothing is known."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_QUERY_LOG_ENABLED": "true"}
    with serving(tmp_path / "data", environ) as server:
        Http(server.url).ok("POST", "/v1/collections", {"name": "docs"})
        Http(server.url).write("docs", *DOCUMENTS)
        Http(server.url).search("docs", query="which lighthouse?")
    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)
        deadline = time.monotonic() + 30
        while not http.metric("nearline_warm_searches_total"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert http.metric("nearline_result_cache_total") == 0, "nobody has asked"
        assert http.search("docs", query="which lighthouse?")["receipt"]["cache"] == "hit"
