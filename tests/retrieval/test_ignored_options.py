"""No path accepts an option and ignores it: each one changes the answer or is refused by its name."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from retrieval.dialects.vector_store_schemas import OpenAIStoreSearch
from retrieval.wire.answer import AnswerRequest
from retrieval.wire.assess import AssessRequest
from retrieval.wire.search import ContextRequest, SearchCollections, SearchRequest
from tests.support.http import Http

JSON = dict[str, Any]

QUERY = "How long do refunds take in the shop?"
PROSE = "Refunds are paid within 14 days of the return of the goods. The shop in Bern takes them back. "
DOCUMENTS = [
    {"id": "long", "title": "Refunds", "text": "# Terms\n" + PROSE * 20, "metadata": {"n": 9, "result": "bad"}},
    {"id": "copy", "title": "Copy", "text": PROSE, "metadata": {"n": 5, "result": "good", "fix": "wait"}},
    {"id": "same", "title": "Same", "text": PROSE, "metadata": {"n": 7, "day": "2026-01-02", "result": "bad"}},
    {"id": "part", "text": "Refunds take long, says the shop.", "metadata": {"n": 2, "day": "2026-03-02"}},
    {"id": "far", "text": "Bread is baked at dawn in the village.", "metadata": {"n": 1, "result": "good"}},
]  # fmt: skip
IS_FAR = {"type": "eq", "key": "n", "value": 1}
TOO_LATE = {"min_seq": 10_000, "deadline_ms": 50}  # either alone waits, or is in time
OPTIONS: JSON = {
    "k": 1, "mode": "lexical", "filter": IS_FAR, "fusion": {"method": "rrf"}, "rerank": True, "mmr": 0.1,
    "group_by_document": True, "collapse": {"key": "result"}, "boosts": [{"key": "n", "weight": 9}],
    "min_score": 1000, "min_relevance": 1.0, "min_seq": TOO_LATE, "deadline_ms": TOO_LATE, "cache": False,
    "typos": {"query": "refundz", "typos": False}, "operators": {"query": '"shop in Bern"', "operators": True},
    "language": "de",
}  # fmt: skip
PAGE: JSON = {
    **OPTIONS, "query": "bread", "vector": [1.0] * 384, "offset": 1, "expand": "document", "highlight": True,
    "sort": [{"key": "n"}], "explain": True,
}  # fmt: skip
SEARCH: JSON = {**PAGE, "like": ["far"], "unlike": ["copy"], "facets": ["n"], "exact": True}
CONTEXT: JSON = {
    **OPTIONS, "query": "bread", "queries": ["bread", "refunds"], "token_budget": 60, "tokenizer": "unknown",
    "format": "messages", "template": "{number} {text}", "order": "position", "explain": True,
    "date_key": {"order": "newest", "date_key": "day"}, "per_document": 1,
    "excerpt_tokens": {"mode": "lexical", "token_budget": 150, "excerpt_tokens": 0},
    "min_similarity": 0.99,
}  # fmt: skip
ASSESS: JSON = {
    "action": "bread", "outcome": {"key": "result", "bad": ["good"]}, "remedy_key": "fix", "neighbors": 1,
    "near_from": 1.0, "filter": IS_FAR, "language": "de", "min_seq": TOO_LATE, "deadline_ms": TOO_LATE,
    "cache": False,
}  # fmt: skip
C = "/v1/collections/{}"
ROUTES: dict[str, tuple[type[msgspec.Struct], JSON, JSON]] = {
    f"{C}/search": (SearchRequest, {"query": QUERY}, SEARCH),
    f"{C}/search/batch": (SearchRequest, {"query": QUERY}, SEARCH),
    "/v1/search": (SearchCollections, {"query": QUERY}, {**PAGE, "collections": ["nowhere"]}),
    f"{C}/context": (ContextRequest, {"query": QUERY, "token_budget": 400}, CONTEXT),
    f"{C}/answer": (
        AnswerRequest,
        {"query": QUERY, "token_budget": 400},
        {**CONTEXT, "instruction": "Rhyme.", "stream": True},
    ),
    f"{C}/assess": (
        AssessRequest,
        {"action": QUERY, "outcome": {"key": "result", "bad": ["bad"]}},
        ASSESS,
    ),
    "/v1/vector_stores/{}/search": (
        OpenAIStoreSearch,
        {"query": QUERY},
        {
            "query": "bread",
            "max_num_results": 1,
            "filters": IS_FAR,
            "ranking_options": {"score_threshold": 1.0},
        },
    ),
}
# As documented: queries are never rewritten, no cache answers a search of several collections, and a collection in one
# piece has no shards that could be left out.
NO_CHANGE = {OpenAIStoreSearch: {"rewrite_query"}, SearchCollections: {"cache"}}
OF_SHARDS = {"partial"}
FENCE = re.compile(r"\b\d{5}\b")


@pytest.fixture(scope="module")
def shop(service: object) -> str:
    http = Http(service.url)  # type: ignore[attr-defined]
    name = http.new_collection()
    http.write(name, *DOCUMENTS)
    return name


def asked(http: Http, path: str, name: str, body: JSON) -> str:
    """Return an answer without what differs each time."""
    if path == "/v1/search":
        body = {"collections": [name], **body}
    sent = {"searches": [body]} if path.endswith("/batch") else body
    for _ in range(2):  # the second time, all that may be cached is
        reply = http.call("POST", path.format(name), sent)
    return FENCE.sub("fence", json.dumps(without_variable(reply.body)))


def without_variable(value: object) -> object:
    """Leave out times, and counts of tokens, which depend on the random fence."""
    if isinstance(value, dict):
        left_out = {"timings_ms", "model_ms", "request_id", "tokens"}
        return {key: without_variable(one) for key, one in value.items() if key not in left_out}
    return [without_variable(one) for one in value] if isinstance(value, list) else str(value)


@pytest.mark.parametrize("path", ROUTES)
def test_every_option_changes_the_answer_or_is_refused(http: Http, shop: str, path: str) -> None:
    kind, base, options = ROUTES[path]
    usual = asked(http, path, shop, base)
    ignored = []
    for option in set(kind.__struct_fields__) - NO_CHANGE.get(kind, set()) - OF_SHARDS:
        value = options[option]  # a new option needs a value here that changes something
        change = value if isinstance(value, dict) and option in value else {option: value}
        beside = {key: one for key, one in change.items() if key not in {option, *TOO_LATE}}
        before = asked(http, path, shop, {**base, **beside}) if beside else usual
        if asked(http, path, shop, {**base, **change}) == before:
            ignored.append(option)
    assert not ignored
