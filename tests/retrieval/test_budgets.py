"""Every option of a search, and every route that takes a body, has a budget. With the worst data, the worst request
of a few kilobytes takes little CPU, at most four times as much where something is repeated four times as often, and
none once its caller has left.

A new option or route fails here until its worst request is written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

from indexes.base.errors import DeadlineExceeded
from indexes.base.model import Floats
from indexes.lexical.analysis import _query_terms
from indexes.parts.query import Query
from indexes.reading.facets import FacetQuery
from retrieval.base.cancellation import Abandoned
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.tokens import Tokens
from retrieval.insight import explaining
from retrieval.search.shard import Ask, LocalShard, run_at_once
from retrieval.search.stopwatch import Stopwatch
from retrieval.server.openapi import Route
from retrieval.server.routes import ROUTES
from retrieval.wire.explain import ExplainRequest
from retrieval.wire.search import ContextRequest, SearchOptions, SearchRequest
from tests.support.http import Http
from tests.support.operations import form
from tests.support.worst_case import (
    FREQUENT,
    LONG,
    NAME,
    Request,
    Service,
    document_id,
    rare_word,
    serving_worst_case,
)

MACHINES = 2.0  # a machine of another kind takes up to so many times as long as `slowness` of its work says
CPU_S_MAX = 0.3 * MACHINES
MORE = {
    "POST /v1/collections/docs/search/batch": 0.4 * MACHINES,  # a hundred searches of 4 ms
    "POST /rerank": 0.4 * MACHINES,  # 800 runs of a model over as many tokens as it reads
    "POST /v1/rerank": 0.4 * MACHINES,
    "POST /v2/rerank": 0.4 * MACHINES,
}
BYTES_MAX = 10_000
TIMES = (1, 2, 4)
SUPERLINEAR_MAX, NOISE_S = 1.5, 0.06  # of four times as much; quadratic work takes four times that
LEFT_AFTER_S, QUIET_AFTER_S, IDLE_CPU_S = 0.1, 1.0, 0.03
TOKEN_S = 0.0001  # that a model of usual size takes for each

C, STORE = f"/v1/collections/{NAME}", f"POST /v1/vector_stores/{NAME}"
OWN = document_id(100)  # of 496 characters
LISTS = {"type": "exists", "key": "days"}
PHRASE = f'"{" ".join(FREQUENT * 2)}"'  # each passage has its words, none has it
LONG_QUERY = "a/" * 2000  # of many more tokens than a pair may have
Made = Callable[[int], Any]
NEW = count()  # for queries that no cache answers


def rare(count: int) -> list[str]:
    return [rare_word(at * 97) for at in range(count)]


def misspelt(count: int) -> str:
    """Words near to many others, that no passage has."""
    return " ".join(word[:3] + "x" + word[3:] + "qu" for word in rare(count))


def prefixes(count: int) -> str:
    return " ".join(f"{first}{second}*" for first in "abeg" for second in "aeoi"[: count // 4])


def long_query(times: int) -> str:
    return f"{' '.join(FREQUENT)} {' '.join(rare(220 * times))}"[: 2000 * times]


def sentences(times: int) -> str:
    """A query that is longer than the model reads, of which an explanation asks sentence by sentence."""
    words = long_query(times).split()
    return ". ".join(" ".join(words[at : at + 8]) for at in range(0, len(words), 8))


SORTS = [{"key": "serials"}, {"key": "day"}]
VECTOR = [1 / 3 + at for at in range(64)]
# One passage has the word, and no search is so deep that it could know that no other one passes.
FEW_PASS = {"mode": "hybrid", "query": rare_word(97), "vector": VECTOR, "min_relevance": 0.1, "k": 1000}
# Of each option the worst that fits: what is repeated comes once, twice and four times.
SEARCH: dict[str, Made] = {
    "k": lambda times: {"k": 250 * times},
    "mode": lambda times: {"mode": "lexical", "query": long_query(times)},
    "filter": lambda times: {
        "filter": {"type": "nin", "key": "serials", "value": [f"s{at * 40}" for at in range(200 * times)]}
    },
    "fusion": lambda times: {"fusion": {"method": "rrf", "k": 10_000}, "k": 250 * times},
    "rerank": lambda times: {"rerank": {"candidates": 25 * times, "budget_ms": 10_000}},
    "mmr": lambda times: {"mmr": 0.5, "k": 250 * times},
    "group_by_document": lambda times: {"group_by_document": True, "k": 250 * times},
    "collapse": lambda times: {"collapse": {"similarity": 0.1}, "k": 250 * times},
    "boosts": lambda times: {
        "k": 1000,
        "boosts": [{"key": key} for key in ("serials", "number")] * times,
    },
    "min_score": lambda times: {"min_score": 0.9, "k": 250 * times},
    "min_relevance": lambda times: {"min_relevance": 1.0, "k": 250 * times},
    "min_seq": lambda times: {"min_seq": 1},
    "deadline_ms": lambda times: {"deadline_ms": 600_000},
    "partial": lambda times: {"partial": True},
    "cache": lambda times: {"cache": True, "query": f"{next(NEW)} {long_query(times)}"},
    "typos": lambda times: {"typos": True, "mode": "lexical", "query": misspelt(8 * times)},
    "operators": lambda times: {"operators": True, "query": f"{PHRASE} " * times},
    "language": lambda times: {"language": "tr", "query": long_query(times)},
    "query": lambda times: {"query": long_query(times)},
    "vector": lambda times: {"vector": VECTOR, "query": None},
    "like": lambda times: {"like": [f"long{at % LONG}" for at in range(25 * times)], "query": None},
    "unlike": lambda times: {"unlike": [document_id(at) for at in range(4 * times)]},
    "offset": lambda times: {"offset": 240 * times},
    "expand": lambda times: {"expand": "document", "k": 125 * times, "query": " ".join(rare(5))},
    "highlight": lambda times: {
        "highlight": {"snippet_chars": 10_000},
        "k": 250 * times,
        "query": long_query(4),
    },
    "sort": lambda times: {"sort": [{"key": key} for key in ("serials", "day")] * times, "k": 100},
    "facets": lambda times: {"facets": ["serials", {"key": "day", "ranges": days(50)}] * times},
    "explain": lambda times: {"explain": True, "k": 250 * times},
    "exact": lambda times: {"exact": True, "mode": "dense", "k": 250 * times},
}
# Further ones, for what an option has several sides of.
SEARCH_TOO: dict[str, Made] = {
    "collapse by distant vectors": lambda times: {"collapse": {"similarity": 1}, "k": 250 * times},
    "collapse by value": lambda times: {"collapse": {"key": "serials", "hits": 2}, "k": 125 * times},
    "collapse by few values": lambda times: {"collapse": {"key": "lang", "hits": 10}, "k": 25 * times},
    "collapse by text": lambda times: {"collapse": "text", "k": 250 * times},
    "a long word": lambda times: {"mode": "lexical", "query": "a1B2" * (500 * times)},
    "a long word of letters": lambda times: {"mode": "lexical", "query": "abcde" * (400 * times)},
    "long words": lambda times: {
        "mode": "lexical",
        "query": " ".join(f"{chr(97 + at)}{'nopqr' * 12}qu" for at in range(7 * times)),
    },
    "prefixes": lambda times: {"operators": True, "query": prefixes(4 * times)},
    "a long phrase": lambda times: {"operators": True, "query": f'"{long_query(times)}"'},
    "phrases by document": lambda times: {
        "operators": True,
        "query": f"{PHRASE} " * times,
        "group_by_document": True,
    },
    "words without spaces": lambda times: {"query": "data." * (400 * times)},
    "letters of a script without spaces": lambda times: {"query": "\u6642" * (600 * times)},
    "words of a script without spaces": lambda times: {"query": "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35" * (100 * times)},
    "boosts by long lists": lambda times: {
        "k": 1000,
        "filter": LISTS,
        "boosts": [{"key": "days", "weight": 0.1, "decay": {"half_life_days": at + 1}} for at in range(2 * times)],
    },
    "sort by long lists": lambda times: {"k": 1000, "filter": LISTS, "sort": [{"key": "days"}] * times},
    "a floor that few pass, and a sort": lambda times: {**FEW_PASS, "sort": SORTS * times},
    "a floor that few pass, and boosts": lambda times: {
        **FEW_PASS,
        "boosts": [{"key": "day", "weight": 0.01, "decay": {"half_life_days": at + 1}} for at in range(2 * times)],
    },
    "few groups, exact and sorted": lambda times: {
        "mode": "dense",
        "exact": True,
        "k": 100,
        "collapse": {"key": "lang", "hits": 10},
        "sort": SORTS * times,
    },
    "facets of long lists": lambda times: {"facets": ["days", {"key": "days", "ranges": days(12 * times)}]},
    "comparisons of long lists": lambda times: {
        "filter": {
            "type": "or",
            "filters": [{"type": "gte", "key": "days", "value": month} for month in months(16 * times)],
        }
    },
    "comparisons": lambda times: {
        "filter": {
            "type": "or",
            "filters": [{"type": "gte", "key": "day", "value": day} for day in days(16 * times)],
        }
    },
}  # fmt: skip
CONTEXT: dict[str, Made] = {
    "queries": lambda times: {
        "queries": [f"{one} {two}" for one in FREQUENT[:times] for two in FREQUENT[:4]]
    },
    "token_budget": lambda times: {"token_budget": 20_000 * times, "k": 1000},
    "tokenizer": lambda times: {"tokenizer": "o200k_base", "token_budget": 2500 * times},
    "format": lambda times: {"format": "messages", "token_budget": 2500 * times},
    "template": lambda times: {"template": "{title}" * (10 * times) + "{text}", "token_budget": 10_000},
    "order": lambda times: {"order": "position", "k": 250 * times},
    "date_key": lambda times: {"date_key": "day", "order": "newest", "k": 250 * times},
    "explain": lambda times: {"explain": True, "k": 250 * times},
    "per_document": lambda times: {"per_document": 100, "k": 250 * times},
    "excerpt_tokens": lambda times: {"excerpt_tokens": 10, "k": 250 * times, "query": long_query(times)},
    "min_similarity": lambda times: {"min_similarity": -1, "k": 250 * times, "token_budget": 20},
}
EXPLAIN: dict[str, Made] = {
    "document_id": lambda times: {"document_id": ("9" * 496)[: 124 * times]},
    "passage": lambda times: {"document_id": "long3", "passage": 0, "query": sentences(times)},
    "answer_seq": lambda times: {"document_id": OWN, "answer_seq": 1},
    "query": lambda times: {"document_id": OWN, "query": "\u3316" * (675 * times)},  # each stands for six
    "typos": lambda times: {"document_id": OWN, "k": 1, "min_score": 0.9, "query": misspelt(8 * times)},
    "operators": lambda times: {"document_id": OWN, "k": 1, "operators": True, "query": f"{PHRASE} " * times},
}
# Of each other route.
BODIES: dict[str, Made] = {
    f"POST {C}/search/batch": lambda times: {
        "searches": [{"query": f"data {at}", "cache": False} for at in range(25 * times)]
    },
    "POST /v1/search": lambda times: {
        "collections": [NAME],
        "query": long_query(times),
        "k": 250 * times,
        "cache": False,
    },
    f"POST {C}/answer": lambda times: {"query": long_query(times), "cache": False},
    f"POST {C}/assess": lambda times: {"action": long_query(times), "cache": False},
    f"POST {C}/feedback": lambda times: {
        "feedback": [{"query": "data", "document_id": f"long{at % LONG}", "grade": 1} for at in range(40 * times)]
    },
    f"POST {C}/documents": lambda times: {
        "documents": [{"id": f"new{next(NEW)}", "text": "a b " * 500 * times}]
    },
    f"POST {C}/documents/scroll": lambda times: {
        "limit": 1000,
        "filter": {"type": "nin", "key": "serials", "value": [f"s{at * 40}" for at in range(200 * times)]},
    },
    f"POST {C}/documents/count": SEARCH["filter"],
    f"POST {C}/documents/patch": lambda times: {
        "ids": [f"none{at}" for at in range(100 * times)],
        "metadata": {"a" * 100: "v"},
    },
    f"POST {C}/documents/delete": lambda times: {"ids": [f"none{at}" for at in range(150 * times)]},
    f"PATCH {C}/documents/{OWN}": lambda times: {"metadata": {"notes": [f"n{at}" for at in range(250 * times)]}},
    "POST /v1/collections": lambda times: {"name": "x" * 2000 * times},
    f"POST {C}/rename": lambda times: {"name": "x" * 2000 * times},
    f"PUT {C}/ranking": lambda times: {"method": "x" * 2000 * times},
    f"PUT {C}/hold": lambda times: {"seconds": 0},
    f"PUT {C}/synonyms": lambda times: {"synonyms": [[f"a{at}", f"b{at} c{at}"] for at in range(75 * times)]},
    f"PUT {C}/evaluation": lambda times: {
        "report": {"version": 2, "cohorts": [{"name": f"c{at}", "recall": 1.0} for at in range(50 * times)]}
    },
    "PUT /v1/aliases/help": lambda times: {"collection": "x" * 2000 * times},
    "POST /v1/keys": lambda times: {"scopes": ["search"], "collections": [f"c{at}" for at in range(200 * times)]},
    "POST /v1/keys/none/rotate": lambda times: {"grace_s": 3600},
    "POST /v1/embeddings": lambda times: {"model": "encoder", "input": [[99574, 0, 0, 0, 0, 0] * 2] * 50 * times},
    "POST /v1/vector_stores": lambda times: {"name": "x" * 2000 * times},
    STORE: lambda times: {"name": "x" * 2000 * times},
    f"{STORE}/search": lambda times: {"query": [f"data {at}" for at in range(2 * times)]},
    f"{STORE}/files": lambda times: {"file_id": "x" * 2000 * times},
    f"{STORE}/files/{OWN}": lambda times: {"attributes": {f"k{at}": "v" for at in range(4 * times)}},
    f"{STORE}/file_batches": lambda times: {"file_ids": [f"file-{at}" for at in range(100 * times)]},
    "POST /v1/files": lambda times: form({"file": "a b " * 500 * times, "purpose": "assistants"}),
    "POST /api/embed": lambda times: {"model": "encoder", "input": ["a"] * 400 * times},
    "POST /api/embeddings": lambda times: {"model": "encoder", "prompt": "a b " * 500 * times},
    "POST /api/show": lambda times: {"model": "x" * 2000 * times},
    "POST /embed": lambda times: {"inputs": ["a"] * 400 * times},
    "POST /": lambda times: {"inputs": " " * 2000 * times},
    "POST /rerank": lambda times: {"query": LONG_QUERY, "texts": ["a"] * 200 * times},
    "POST /embed_all": lambda times: {"inputs": ["a"] * 100 * times},
    "POST /v2/embed": lambda times: {"model": "encoder", "input_type": "search_query", "texts": ["a"] * 24 * times},
    "POST /similarity": lambda times: {"inputs": {"source_sentence": "data", "sentences": ["a"] * 300 * times}},
    "POST /v1/rerank": lambda times: {"model": "reader", "query": LONG_QUERY, "documents": ["a"] * 200 * times},
    "POST /v2/rerank": lambda times: {"model": "reader", "query": LONG_QUERY, "documents": ["a"] * 200 * times},
}  # fmt: skip
STARTS_A_JOB = {  # which is what takes the time
    *(f"POST {C}/reindex", f"POST {C}/tune"),
    *("POST /v1/cluster/moves", "POST /v1/cluster/balance"),
}
BY_OPTION = {f"POST {C}/search", f"POST {C}/context", f"POST {C}/explain", f"POST {C}/watch"}


def days(count: int) -> list[str]:
    return [f"{1900 + at}-01-01" for at in range(count)]


def months(count: int) -> list[str]:
    return [f"{1970 + at // 12}-{1 + at % 12:02}" for at in range(count)]


def cases() -> Iterator[tuple[str, Callable[[int], Request]]]:
    def at(path: str, made: Made, **always: Any) -> Callable[[int], Request]:
        return lambda times: Request(path, {**always, **made(times)})

    search = {"query": "data time", "cache": False}
    for option, made in {**SEARCH, **SEARCH_TOO}.items():
        yield f"search {option}", at(f"{C}/search", made, **search)
    for option, made in CONTEXT.items():
        asked = {"cache": False} if option == "queries" else search
        yield f"context {option}", at(f"{C}/context", made, token_budget=5000, **asked)
    for option, made in EXPLAIN.items():
        yield f"explain {option}", at(f"{C}/explain", made, query="data time")
    for route, made in BODIES.items():
        method, path = route.split()

        def request(times: int, method: str = method, path: str = path, made: Made = made) -> Request:
            return Request(path, made(times), method)

        yield route, request


CASES = dict(cases())


def concrete(route: Route) -> str:
    path = route.path
    for name, value in {
        "{collection}": NAME, "{id:.+}": OWN, "{alias}": "help", "{key}": "none", "{file}": OWN,
    }.items():  # fmt: skip
        path = path.replace(name, value)
    return f"{route.method} {path}"


def test_each_option_and_route_has_a_worst_request() -> None:
    """Of the options that contexts and explanations share with searches, those of a search count."""
    shared = set(SearchOptions.__struct_fields__)
    assert set(SEARCH) == set(SearchRequest.__struct_fields__)
    assert set(CONTEXT) | {"query"} == set(ContextRequest.__struct_fields__) - shared
    assert set(EXPLAIN) - set(SEARCH) == set(ExplainRequest.__struct_fields__) - set(
        SearchRequest.__struct_fields__
    )
    assert {concrete(route) for route in ROUTES if route.request} == set(BODIES) | BY_OPTION | STARTS_A_JOB


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_worst_case(tmp_path_factory.mktemp("worst")) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
def test_it_takes_little_and_no_more_than_its_share(service: Service, case: str) -> None:
    """Four times as much takes about four times as long at most, and never more than CPU_S_MAX."""
    made = CASES[case]
    service.ask(made(1))  # what is read once has been read
    most = dict.fromkeys(TIMES, MORE.get(case, CPU_S_MAX))
    spent = {}
    for times in TIMES:
        request = made(times)
        assert len(request.sent) <= BYTES_MAX
        spent[times] = service.least_cpu_s(request, most[times])
        most[4] = min(most[4], 4 * SUPERLINEAR_MAX * spent[1] + NOISE_S)
    assert all(spent[times] <= most[times] for times in TIMES), (spent, most)


@pytest.mark.parametrize("option", [*SEARCH, *SEARCH_TOO])
def test_several_collections_take_no_more(service: Service, option: str) -> None:
    """Where the answers of several collections are joined, which is done in other ways, every option is as cheap."""
    made = {**SEARCH, **SEARCH_TOO}[option](4)
    request = Request("/v1/search", {"collections": [NAME], "query": "data time", "cache": False, **made})
    assert len(request.sent) <= BYTES_MAX
    service.ask(request)
    assert service.least_cpu_s(request, CPU_S_MAX) <= CPU_S_MAX


def assert_dear_by_budget_alone(service: Service, dear: Request, plain: Request) -> None:
    """Whatever its options, a request takes what the same one takes without them, and as much as one search may."""
    assert len(dear.sent) <= BYTES_MAX
    service.ask(dear)
    base = min(service.ask(plain)[0] for _ in range(3))
    most = CPU_S_MAX + SUPERLINEAR_MAX * base
    assert service.least_cpu_s(dear, most) <= most, base


def dear_requests(file_id: str) -> Iterator[Request]:
    """Requests that take the service long if it is let: large ones, and those that have the models read much."""
    full = ["a/" * 125] * 2000
    long = "a/" * 1_500_000
    ids = [[9906, 1917, 0] * 2000] * 1000
    query = "a/" * 4000
    document = {"id": "left", "text": long}
    for path, body in [
        ("/v1/embeddings", {"model": "encoder", "input": full}),
        ("/v1/embeddings", {"model": "encoder", "input": "a/" * 350_000, "long_inputs": "windows"}),
        ("/v1/embeddings", {"model": "encoder", "input": ids}),
        ("/api/embed", {"model": "encoder", "input": full}),
        ("/embed", {"inputs": full}),
        ("/embed", {"inputs": [[500, 600] * 400_000]}),
        ("/", {"inputs": full}),
        ("/similarity", {"inputs": {"source_sentence": long, "sentences": full}}),
        ("/v2/embed", {"model": "encoder", "input_type": "search_query", "texts": full}),
        ("/rerank", {"query": query, "texts": full}),
        ("/v1/rerank", {"model": "reader", "query": query, "documents": full}),
        ("/v2/rerank", {"model": "reader", "query": query, "documents": full}),
        (f"{C}/documents", {"documents": [document]}),
        (f"{C}/documents/patch", {"filter": LISTS, "metadata": {}}),
        (f"{C}/search/batch", {"searches": [{"query": long_query(4), "k": 1000, "cache": False}] * 100}),
        (f"/v1/vector_stores/{NAME}/search", {"query": [f"{query[:2000]}{at}" for at in range(8)]}),
        (f"/v1/vector_stores/{NAME}/files", {"file_id": file_id}),
        (f"/v1/vector_stores/{NAME}/file_batches", {"file_ids": [file_id] * 20}),
    ]:  # fmt: skip
        yield Request(path, body)
    yield Request("/v1/files", form({"file": "a/" * 4_000_000, "purpose": "assistants"}))
    reranked = {"query": long_query(1), "k": 250, "rerank": {"candidates": 250, "budget_ms": 10_000}}
    yield Request(f"{C}/search", {**reranked, "cache": False})


# What takes a body and is not in `dear_requests`: no body makes it take long, or its options are among the cases.
NEVER_LONG = {
    f"POST {C}/answer", f"POST {C}/assess", f"POST {C}/feedback", f"POST {C}/documents/scroll",
    f"POST {C}/documents/count", f"POST {C}/documents/delete", f"PATCH {C}/documents/{OWN}", "POST /v1/collections",
    f"POST {C}/rename", f"PUT {C}/ranking", f"PUT {C}/evaluation", "PUT /v1/aliases/help", "POST /v1/keys",
    "POST /v1/keys/none/rotate", "POST /v1/vector_stores", STORE, f"{STORE}/files/{OWN}", "POST /api/show",
    "POST /api/embeddings", "POST /embed_all", "POST /v1/search", f"PUT {C}/synonyms",
    f"PUT {C}/hold",
}  # fmt: skip


def test_no_large_request_outlives_its_caller(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is left once it is under way, with models as slow as those of usual size. A second later, nothing is
    done for any of them."""
    run = Encoder.run

    def slow_run(encoder: Encoder, batch: Sequence[Tokens]) -> Floats:
        until = time.thread_time() + TOKEN_S * sum(map(len, batch))
        found = run(encoder, batch)
        while time.thread_time() < until:
            time.sleep(0)
        return found

    _, _, uploaded = service.ask(
        Request("/v1/files", form({"file": "a/ " * 1_000_000, "purpose": "assistants"}))
    )
    monkeypatch.setattr(Encoder, "run", slow_run)
    seq = service.collection.snapshot.seq
    requests = list(dear_requests(uploaded["id"]))
    assert {f"{one.method} {one.path}" for one in requests} | NEVER_LONG >= set(BODIES)
    for some in (
        requests[:-1],
        requests[-1:],
    ):  # a search that reranks waits for other rerankings, so it comes alone
        for one in some:
            service.leave([one], LEFT_AFTER_S)
        service.wait(QUIET_AFTER_S)
        assert service.quiet_cpu_s() <= IDLE_CPU_S
    assert service.collection.snapshot.seq == seq


def test_nothing_is_done_for_callers_that_have_left(service: Service) -> None:
    """All of them at once, and searches by the dozen: a second after they have left, the service is idle."""
    many = [
        Request(f"{C}/search/batch", {"searches": [{**CASES[f"search {one}"](4).body}] * 12})
        for one in ("typos", "operators", "facets", "highlight", "prefixes", "query")
    ]
    requests = [
        made(4) for case, made in CASES.items() if not case.startswith(("PATCH", f"POST {C}/documents"))
    ]
    service.leave([*many, *requests], LEFT_AFTER_S)
    service.leave(many, LEFT_AFTER_S)
    service.leave([Request(f"{C}/watch", {"query": misspelt(32)})], LEFT_AFTER_S)
    Http(service.url).ok("GET", "/healthz")
    service.wait(QUIET_AFTER_S)
    assert service.quiet_cpu_s() <= IDLE_CPU_S


@pytest.mark.parametrize(
    ("query", "ends"),
    [
        (Query(10, 100, misspelt(4), typos=True), Abandoned),
        (Query(10, 100, "data", prefixes=("aa", "ba")), Abandoned),
        (Query(10, 100, "data", phrases=("data time",)), DeadlineExceeded),
    ],
    ids=["typos", "prefixes", "phrases"],
)
def test_what_has_begun_ends_at_its_next_step(service: Service, query: Query, ends: type[Exception]) -> None:
    """A search whose caller has left, or whose deadline has passed, on its thread: its words, and its facets."""
    watch = Stopwatch(deadline=0.0) if ends is DeadlineExceeded else Stopwatch(left=True)
    shard = LocalShard(service.collection, service.collection.snapshot, watch)
    with pytest.raises(ends):
        run_at_once(partial(shard.search, Ask(query)))
    with pytest.raises(ends):
        run_at_once(partial(shard.facets, None, [FacetQuery("serials")]))


def test_an_answer_says_what_its_budget_left_out(service: Service) -> None:
    """Phrases were looked for in the first candidates, and words shown in the first hits. A search as people make them
    is not told anything."""
    phrase = {"query": PHRASE, "operators": True}
    shown = {"query": " ".join(FREQUENT), "mode": "lexical", "highlight": True, "k": 1000}
    for option, body in {"operators": phrase, "highlight": shown}.items():
        for _ in range(2):  # cached or not
            _, _, answer = service.ask(Request(f"{C}/search", body))
            assert answer["receipt"]["over_budget"] == [option]
    assert answer["hits"][0]["highlights"]
    assert "highlights" not in answer["hits"][-1]
    usual = {"query": f"data {misspelt(1)}", "highlight": True}
    _, _, answer = service.ask(Request(f"{C}/search", usual))
    assert "over_budget" not in answer["receipt"]


# Searches of one request that each take much by themselves, with the options that make them dear.
DEAR: dict[str, tuple[str, dict[str, Any]]] = {
    "typos": (misspelt(8), {"typos": True, "mode": "lexical"}),
    "operators": (PHRASE, {"operators": True}),
    "prefixes": (prefixes(16), {"operators": True}),
    "highlight": (" ".join(FREQUENT), {"highlight": True, "k": 1000, "mode": "lexical"}),
    "facets": ("data", {"facets": ["serials", "number", "day"], "k": 1}),
}


@pytest.mark.parametrize("option", DEAR)
def test_the_searches_of_a_request_share_its_budgets(service: Service, option: str) -> None:
    """Beyond what as many plain searches cost, a batch takes as much as one search may, and each receipt says what was
    left out. Plain searches beside them are answered whole."""
    query, options = DEAR[option]
    dear = {**options, "query": query, "cache": False}
    plain = {name: value for name, value in dear.items() if name in {"query", "cache", "k", "mode"}}
    searches = 60 if option in {"facets", "prefixes"} else 20
    asked = {
        name: Request(f"{C}/search/batch", {"searches": [search] * searches})
        for name, search in {"plain": plain, "dear": dear}.items()
    }
    assert_dear_by_budget_alone(service, asked["dear"], asked["plain"])
    _, _, answer = service.ask(asked["dear"])
    if option != "prefixes":  # too many are refused, as they are of one search
        named = [one["receipt"].get("over_budget", []) for one in answer["results"]]
        assert named[-1] == ["operators" if option == "operators" else option]
    mixed = Request(
        f"{C}/search/batch", {"searches": [*[dear] * 5, *[{"query": "data", "cache": False}] * 20]}
    )
    _, _, answer = service.ask(mixed)
    assert [len(one["hits"]) for one in answer["results"][5:]] == [10] * 20
    assert all("over_budget" not in one["receipt"] for one in answer["results"][5:])


@pytest.mark.slow
@pytest.mark.parametrize("route", ["context", "answer"])
@pytest.mark.parametrize("option", ["typos", "operators"])
def test_the_queries_of_a_context_share_its_budgets(service: Service, route: str, option: str) -> None:
    query, options = DEAR[option]
    dear: dict[str, Any] = {"query": query, "cache": False}
    plain = dear
    if route == "context":
        queries = [f"{query} {word}" for word in FREQUENT] * 2
        plain = {"queries": queries, "token_budget": 1000, "k": 10, "cache": False}
        dear = {**plain, **options}
    assert_dear_by_budget_alone(service, Request(f"{C}/{route}", dear), Request(f"{C}/{route}", plain))


def test_what_others_of_a_request_took_is_not_kept(service: Service) -> None:
    """A search that had no work left in a batch finds all that it can when it is asked again."""
    last = {"query": '"data"', "operators": True}
    others = [{"query": PHRASE, "operators": True, "cache": False}] * 12
    _, _, answer = service.ask(Request(f"{C}/search/batch", {"searches": [*others, last]}))
    assert answer["results"][-1]["receipt"]["over_budget"] == ["operators"]
    _, _, alone = service.ask(Request(f"{C}/search", last))
    assert "over_budget" not in alone["receipt"]
    assert len(alone["hits"]) == 10


def test_a_search_that_is_not_deepened_says_so(service: Service) -> None:
    """The receipt names the options that left out candidates, so that hits were lacking."""
    for options, named in (
        ({}, ["min_relevance"]),
        ({"min_score": -100.0}, ["min_score", "min_relevance"]),
        ({"k": 10, "sort": None}, None),
    ):
        _, _, answer = service.ask(
            Request(f"{C}/search", {**FEW_PASS, "sort": SORTS * 4, "cache": False, **options})
        )
        assert answer["receipt"].get("over_budget") == named


def test_a_long_query_says_that_it_is_not_corrected(service: Service) -> None:
    _, _, answer = service.ask(Request(f"{C}/search", {"query": misspelt(40), "typos": True}))
    assert answer["receipt"]["over_budget"] == ["typos"]


@pytest.mark.parametrize("route", ["search", "explain"])
def test_a_long_query_is_analyzed_once(service: Service, route: str) -> None:
    """A search and its explanation share the terms of a query."""
    query = f"{next(NEW)}" + "\u3316" * 2700  # each stands for six
    asked = {"document_id": OWN} if route == "explain" else {"explain": True}
    before = _query_terms.cache_info().misses
    _, status, _ = service.ask(Request(f"{C}/{route}", {"query": query, "typos": False, **asked}))
    assert status == 200
    assert _query_terms.cache_info().misses - before == 1


def test_an_explanation_says_that_it_ended(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries no further change once its searches have taken long, and has found the cause all the same."""
    monkeypatch.setattr(explaining, "SEARCHED_S_MAX", 0.0)
    body = {"query": "data", "filter": {"type": "eq", "key": "number", "value": 7}, "document_id": OWN}
    _, _, answer = service.ask(Request(f"{C}/explain", body))
    assert (answer["over_budget"], answer["searches"], answer["cause"]["kind"]) == (True, 1, "filtered")
