"""Searches under load cost less, say so, and leave nothing of it behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobs.serving.process import serving
from retrieval.base.settings import Config
from retrieval.base.settings import RerankSection as RerankSettings
from retrieval.context.joining import receipt_of
from retrieval.search.plan import make_plan
from retrieval.wire.options import Rerank, Sort
from retrieval.wire.search import Receipt, SearchRequest
from tests.support.http import Http

CONFIG = Config(rerank=RerankSettings(model="cross-encoder"))


def test_what_is_left_out() -> None:
    """Reranking, and candidates beyond those that are shown; what was asked for stays the same question."""
    asked = SearchRequest(query="refunds", k=30, rerank=Rerank())
    calm, strained = (make_plan(asked, 2, CONFIG, strained=strained) for strained in (False, True))
    assert (calm.query.depth, calm.degraded) == (100, ())
    assert (strained.query.depth, strained.rerank, strained.degraded) == (30, None, ("candidates", "rerank"))
    assert strained.identity == calm.identity


@pytest.mark.parametrize(
    "asked",
    [
        SearchRequest(query="refunds", offset=10),
        SearchRequest(query="refunds", mmr=0.5),
        SearchRequest(query="refunds", sort=[Sort(key="year")]),
        SearchRequest(query="refunds", mode="dense"),
        SearchRequest(query="refunds", mode="dense", exact=True),
    ],
)
def test_what_is_not(asked: SearchRequest) -> None:
    """Other pages, orders of one's own and exact answers: among fewer candidates they would not be what they are."""
    calm, strained = (make_plan(asked, 2, CONFIG, strained=strained) for strained in (False, True))
    assert (strained.query, strained.degraded) == (calm.query, ())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Http]:
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_SEARCH_STRAINED_FROM": "1"}
    with serving(tmp_path_factory.mktemp("strained") / "data", environ) as server:
        yield Http(server.url)


def test_the_receipt_says_so(service: Http) -> None:
    """Of the searches of a batch the first finds nothing under way, the others do. Their answers are not kept: asked
    again in calm, the search is answered whole."""
    name = service.new_collection()
    service.write(
        name, {"id": "a", "text": "Refunds within 30 days"}, {"id": "b", "text": "Returns are free"}
    )
    searches = [{"query": f"refunds {number}"} for number in range(4)]
    found = service.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": searches})["results"]
    receipts = [one["receipt"] for one in found]
    assert [one.get("degraded") for one in receipts] == [None] + [["candidates"]] * 3
    again = [service.search(name, **one)["receipt"] for one in searches]
    assert [(one["cache"], one.get("degraded")) for one in again] == [("hit", None)] + [("miss", None)] * 3
    one = msgspec.convert(receipts[0], Receipt)
    together = receipt_of([one, msgspec.convert(receipts[1], Receipt), one])
    assert together.degraded == ["candidates"]
