"""Search processes: they answer as the service itself does, miss no write, and none is missed when it dies."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http import client as http_client
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from indexes.base.work import WorkBudget
from jobs.serving.process import ServerProcess, serving
from retrieval.embedding.encoder import available_threads
from retrieval.processes.pool import PROCESSES_MAX, as_many_as_serve
from tests.support.children import children
from tests.support.commands import nearline
from tests.support.http import Http, Reply

PROCESSES = {"NEARLINE_SERVER_SEARCH_PROCESSES": "2"}
UP_S, GONE_S = 60.0, 1.0
SUBJECTS = ["tides", "glaciers", "volcanoes", "comets", "beetles", "harbors", "violins", "bridges"]
VERBS = ["rise", "move", "sleep", "shine", "gather", "freeze", "sound", "span"]

# Every option of a search that a process handles; two that it refuses, and one that the service answers itself.
SEARCHES: list[dict[str, Any]] = [
    {"query": "how do glaciers move"},
    {"query": "how do glaciers move", "mode": "lexical"},
    {"query": "how do glaciers move", "mode": "dense", "k": 3},
    {"query": "volcanoes", "filter": {"type": "eq", "key": "verb", "value": "sleep"}},
    {"query": "volcanoes", "filter": {"type": "eq", "key": "nothing", "value": 1}},
    {"query": "comets shine", "offset": 5, "k": 5},
    {"query": "comets shine", "group_by_document": True, "min_score": 0.2},
    {"query": "comets shine", "min_relevance": 0.1, "explain": True},
    {"query": "glaciars move", "typos": True, "mode": "lexical"},
    {"query": '"beetles gather" -harbors', "operators": True},
    {"query": "beetles gather", "highlight": True, "facets": ["verb", "number"]},
    {"query": "violins", "boosts": [{"key": "number", "weight": 0.5}]},
    {"query": "violins", "sort": [{"key": "number", "order": "desc"}]},
    {"query": "bridges", "mmr": 0.4},
    {"query": "bridges", "collapse": {"key": "verb", "hits": 2}},
    {"query": "bridges", "collapse": False, "expand": "document"},
    {"like": ["d3"], "unlike": ["d10"]},
    {"query": "harbors", "fusion": {"method": "rrf"}},
    {"query": "harbors", "language": "de"},
    {"query": "bridges", "k": 100_000},
    {"query": "harbors", "mode": "dense", "exact": True},
]


def documents() -> list[dict[str, Any]]:
    return [
        {
            "id": f"d{number}",
            "text": f"The {subject} {verb} at hour {number}. Nobody knows why {subject} {verb} so late.",
            "metadata": {"number": number, "verb": verb},
        }
        for number, (subject, verb) in enumerate((one, other) for one in SUBJECTS for other in VERBS)
    ]


def metric(http: Http, name: str) -> float:
    return http.metric(f"nearline_search_process{name}")


def wait_until(is_so: Callable[[], bool], seconds: float = UP_S) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def use_processes(http: Http, name: str, **options: object) -> None:
    """Search until a process has answered, as soon as one has the collection open."""

    def answered() -> bool:
        before = metric(http, "_answers_total")
        http.search(name, query="a search for the processes", cache=False, **options)
        return metric(http, "_answers_total") > before

    wait_until(answered)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    environ = {**PROCESSES, "NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(tmp_path_factory.mktemp("processes") / "data", environ) as running:
        yield running


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    environ = {
        "NEARLINE_SERVER_SEARCH_PROCESSES": "0",
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
    }
    with serving(tmp_path_factory.mktemp("alone") / "data", environ) as running:
        yield running


@pytest.mark.slow
def test_the_searches_of_a_request_share_its_budgets(service: ServerProcess) -> None:
    """Those of a batch that are answered side by side compare their words with as many terms as one search may, and no
    fewer. A search of its own may compare with all of them."""
    http, rng = Http(service.url), random.Random(3)
    name = http.new_collection(dimensions=2)
    terms = list({"w" + "".join(rng.choices("bdgkmp", k=8)) for _ in range(40_000)})
    texts = [" ".join(terms[at : at + 200]) for at in range(0, len(terms), 200)]
    written = [{"id": at, "text": text, "vector": [1, at], "language": "en"} for at, text in enumerate(texts)]
    http.write(name, *written)
    by_words = {"mode": "lexical", "cache": False}
    use_processes(http, name, mode="lexical")
    searches = [
        {"query": "w" + "".join(rng.choices("aeiou", k=8)), "highlight": True, **by_words} for _ in range(30)
    ]
    batch = http.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": searches})["results"]
    whole = [one for one in batch if "over_budget" not in one["receipt"]]
    assert len(whole) == WorkBudget().comparisons // len(terms)
    for search in searches:
        assert "over_budget" not in http.search(name, **search)["receipt"]
    marked = [{"query": term, "highlight": True, **by_words} for term in terms[:1000:50]]
    batch = http.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": marked})["results"]
    assert all(one["hits"][0]["highlights"] and "over_budget" not in one["receipt"] for one in batch)


def test_they_answer_as_the_service_does(service: ServerProcess, alone: ServerProcess) -> None:
    """Every option gives the same hits, receipts and errors, before a rebuild and after it."""
    https = Http(service.url), Http(alone.url)
    for http in https:
        http.ok("POST", "/v1/collections", {"name": "same"})
        http.write("same", *documents())
        http.ok("PUT", "/v1/collections/same/synonyms", {"synonyms": [["volcanoes", "craters"]]})
    for rebuilt in (False, True):
        if rebuilt:
            for http in https:
                http.reindex("same")
        use_processes(https[0], "same")
        for asked in SEARCHES:
            before = metric(https[0], "_answers_total")
            answers = [
                http.call("POST", "/v1/collections/same/search", {**asked, "cache": False}) for http in https
            ]
            assert comparable(answers[0]) == comparable(answers[1]), asked
            by_process = answers[0].status == 200 and not asked.get("exact")
            assert metric(https[0], "_answers_total") - before == by_process, asked


def comparable(answer: Reply) -> Any:
    """The status and the answer without its times."""
    return answer.status, {key: value for key, value in answer.body.items() if key != "timings_ms"}


@pytest.mark.parametrize("place", ["service", "alone"])
def test_a_document_that_is_changed_all_the_time_is_found(place: str, request: pytest.FixtureRequest) -> None:
    """Its passages are replaced hundreds of times a second, and each search finds one of them."""
    http = Http(request.getfixturevalue(place).url)
    name, ended = http.new_collection(dimensions=2), threading.Event()
    http.write(name, {"id": "best", "text": "best thing", "vector": [1, 0], "metadata": {"kind": 1}})
    other = http.new_collection(dimensions=2)
    http.write(other, {"id": "worse", "text": "another one", "vector": [1, 0]})
    others = [{"id": f"o{one}", "text": f"another {one}", "vector": [1, one]} for one in range(1, 500)]
    http.write(name, *others)

    def change() -> int:
        for version in itertools.count():
            if ended.is_set():
                return version
            body = {"metadata": {"kind": 1, "version": version}}
            assert http.call("PATCH", f"/v1/collections/{name}/documents/best", body).status == 200
        raise AssertionError

    searches: list[dict[str, Any]] = [
        {"query": "best", "mode": "lexical"},
        {"vector": [1, 0], "mode": "dense"},
        {
            "vector": [1, 0],
            "mode": "dense",
            "exact": True,
            "filter": {"type": "eq", "key": "kind", "value": 1},
        },
        {"query": "best", "vector": [1, 0], "facets": ["kind"], "highlight": True, "expand": "document"},
    ]
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(change)
        try:
            for _ in range(60):
                for search in searches:
                    assert http.found(name, **search, k=3, cache=False)[:1] == ["best"], search
                together = {"collections": [name, other], "query": "best", "mode": "lexical", "k": 3}
                assert [hit["document_id"] for hit in http.ok("POST", "/v1/search", together)["hits"]] == [
                    "best"
                ]
        finally:
            ended.set()
        assert changed.result() > 100


def test_a_caller_sees_only_what_its_groups_may(service: ServerProcess) -> None:
    """The collection's own ranking and synonyms apply there as soon as they are set."""
    http = Http(service.url)
    name = http.new_collection()
    http.write(name, *documents())
    use_processes(http, name)
    assert http.found(name, query="lava", mode="lexical", typos=False) == []
    http.ok("PUT", f"/v1/collections/{name}/synonyms", {"synonyms": [["lava", "volcanoes"]]})
    assert http.found(name, query="lava", mode="lexical", typos=False)
    http.ok("DELETE", f"/v1/collections/{name}/synonyms")
    assert http.found(name, query="lava", mode="lexical", typos=False) == []


@pytest.mark.slow
def test_a_collection_may_be_erased_renamed_and_deleted(service: ServerProcess) -> None:
    """The processes let go of its files, and have it open again afterwards."""
    http = Http(service.url)
    name = http.new_collection()
    http.write(name, *documents())
    use_processes(http, name)
    http.ok("DELETE", f"/v1/collections/{name}/documents/d1")
    ended = threading.Event()

    def search() -> int:
        count = 0
        while not ended.is_set():
            assert http.found(name, query=f"how do {SUBJECTS[count % 8]} move", cache=False)
            count += 1
        return count

    with ThreadPoolExecutor(4) as threads:
        searches = [threads.submit(search) for _ in range(4)]
        for _ in range(3):
            job = http.wait_for(http.ok("POST", f"/v1/collections/{name}/erase")["job"])
            assert job["status"] == "succeeded", job
        ended.set()
        assert all(one.result() > 0 for one in searches)
    use_processes(http, name)
    http.ok("POST", f"/v1/collections/{name}/rename", {"name": f"{name}-new"})
    use_processes(http, f"{name}-new")
    assert "d2" in http.found(f"{name}-new", query="tides move at hour 2")
    http.ok("DELETE", f"/v1/collections/{name}-new")
    assert http.call("POST", f"/v1/collections/{name}-new/search", {"query": "tides"}).status == 404


def test_callers_that_leave_harm_nobody(service: ServerProcess) -> None:
    """Whether their searches have begun or not, the processes stay up and answer others."""
    http = Http(service.url)
    name = http.new_collection()
    http.write(name, *documents())
    use_processes(http, name)
    before, at = metric(http, "_restarts_total"), urlsplit(service.url)
    for _ in range(5):
        callers = [http_client.HTTPConnection(str(at.hostname), at.port) for _ in range(30)]
        for number, caller in enumerate(callers):
            asked = json.dumps({"query": f"how do glaciers move at {number}", "cache": False})
            caller.request(
                "POST", f"/v1/collections/{name}/search", asked, {"Content-Type": "application/json"}
            )
        for caller in callers:
            caller.close()
    use_processes(http, name)
    assert metric(http, "_restarts_total") == before


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def over(works: list[Future[int]]) -> bool:
    return any(work.done() for work in works)


@pytest.mark.parametrize(
    "kills",
    [
        10,
        pytest.param(
            int(os.environ.get("NEARLINE_TORTURE_KILLS", "200")),
            marks=[pytest.mark.torture, pytest.mark.timeout(1800)],
        ),
    ],
)
def test_nothing_is_missed_while_they_are_killed(service: ServerProcess, kills: int) -> None:
    """Beside kills of random processes every search is answered, and no search that began after an acknowledgement
    misses what was acknowledged, whichever process answers it."""
    http, chance = Http(service.url), random.Random(3)
    name = http.new_collection()
    http.write(name, *documents())
    use_processes(http, name)
    ended = threading.Event()

    def write_and_look(writer: int) -> int:
        caller, number = Http(service.url), 0
        while not ended.is_set():
            number += 1
            word = f"zebra{writer}x{number}"
            caller.write(name, {"id": f"w{writer}", "text": f"The {word} crosses at dawn."})
            asked = {"query": f"{word} crosses", "mode": "lexical", "typos": False, "cache": False}
            found = caller.search(name, **asked)["hits"]
            assert f"w{writer}" in [hit["document_id"] for hit in found], word
            assert all(hit["text"].split()[1] == word for hit in found if hit["document_id"] == f"w{writer}")
            if number % 5 == 0:
                caller.ok("DELETE", f"/v1/collections/{name}/documents/w{writer}")
                again = caller.found(name, **asked)
                assert f"w{writer}" not in again, word
        return number

    def search() -> int:
        caller, number, seen = Http(service.url), 0, 0
        while not ended.is_set():
            number += 1
            # The service itself answers the exact ones.
            options = {"mode": "dense", "exact": True} if number % 3 == 0 else {}
            query = f"how do {SUBJECTS[number % 8]} {VERBS[number // 8 % 8]}"
            answer = caller.search(name, query=query, cache=False, **options)
            assert answer["hits"]
            assert answer["receipt"]["seq"] >= seen
            seen = answer["receipt"]["seq"]
        return number

    with ThreadPoolExecutor(5) as threads:
        works = [threads.submit(write_and_look, writer) for writer in range(3)]
        works += [threads.submit(search) for _ in range(2)]
        killed = 0
        try:
            while killed < kills and not over(works):
                before = metric(http, "_answers_total")
                # One that is killed while it starts proves nothing, and is not started again at once.
                wait_until(lambda: metric(http, "_answers_total") > before or over(works))  # noqa: B023
                if found := children(service.pid):  # none while both are started again
                    os.kill(chance.choice(found), signal.SIGKILL)
                    killed += 1
                time.sleep(chance.uniform(0, 0.3))
        finally:
            ended.set()
        assert all(work.result() > 0 for work in works)
    assert metric(http, "_restarts_total") >= kills
    use_processes(http, name)


@pytest.mark.slow
def test_they_end_with_the_service(tmp_path: Path, model_folder: Path) -> None:
    """Within a second of its death; and when it stops, it leaves none behind."""
    environ = {**PROCESSES, "NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    for end in (ServerProcess.kill, ServerProcess.stop):
        running = ServerProcess(tmp_path / "data", environ)
        http = Http(running.url)
        if end is ServerProcess.kill:
            http.ok("POST", "/v1/collections", {"name": "kept"})
        use_processes(http, "kept")
        found = children(running.pid)
        assert len(found) == 2
        end(running)
        wait_until(lambda: not any(map(runs, found)), GONE_S)  # noqa: B023


@pytest.mark.slow
def test_one_that_hangs_is_done_without(service: ServerProcess) -> None:
    """Searches that it has are asked elsewhere, and no others are sent to it."""
    http = Http(service.url)
    name = http.new_collection()
    http.write(name, *documents())
    use_processes(http, name)
    stopped = children(service.pid)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        for number in range(8):
            assert http.found(name, query=f"how do glaciers move at {number}", cache=False)
    finally:
        os.kill(stopped, signal.SIGCONT)


@pytest.mark.slow
def test_by_default_there_are_as_many_as_serve(tmp_path: Path, model_folder: Path) -> None:
    """One for each core, fewer where there is little memory, and `nearline top` shows what they use."""
    assert as_many_as_serve(16 << 30) == min(available_threads(), PROCESSES_MAX)
    assert as_many_as_serve(1 << 29) == 1
    assert as_many_as_serve(1 << 28) == 0
    environ = {
        "NEARLINE_SERVER_SEARCH_PROCESSES": "-1",
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
    }
    with serving(tmp_path / "data", environ) as running:
        wanted = as_many_as_serve(int(Http(running.url).metric("nearline_memory_bytes", kind="ceiling")))
        wait_until(lambda: metric(Http(running.url), "es") == wanted)
        shown = nearline("top", "--once", "--json", "--url", running.url)
        figures = json.loads(shown.stdout)
        assert figures["search_processes"] == wanted
        assert (figures["search_memory_bytes"] > 0) == (wanted > 0)


@pytest.mark.slow
def test_what_sparing_the_cold_tier_loses_is_learned_by_the_service(tmp_path: Path) -> None:
    """Whichever process a search is answered by, it counts once, and the tier's rule is one for all of them."""
    environ = {**PROCESSES, "NEARLINE_SEARCH_COLD": "calibrated"}
    draw = random.Random(4)

    def vector() -> list[float]:
        return [draw.gauss(0, 1) for _ in range(16)]

    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)
        name = http.new_collection(dimensions=16, hot_capacity=50)
        http.write(name, *({"id": f"d{n}", "text": f"text {n}", "vector": vector()} for n in range(400)))
        assert http.reindex(name)["status"] == "succeeded"
        use_processes(http, name)
        before = http.ok("GET", f"/v1/collections/{name}")["cold"]["queries"]
        answered = metric(http, "_answers_total")
        for _ in range(30):
            http.search(name, vector=vector())
        cold = http.ok("GET", f"/v1/collections/{name}")["cold"]
        assert metric(http, "_answers_total") >= answered + 25
        assert (cold["state"], cold["queries"]) == ("learning", before + 30)
        assert http.metric("nearline_cold_decisions_total", collection=name, outcome="searched") >= 30


def test_a_collection_that_is_not_searched_leaves_memory(tmp_path: Path) -> None:
    """Processes close it, and the service drops its indexes. What is written then is found by the next search, with the
    hits that it would have had."""
    environ = {**PROCESSES, "NEARLINE_INDEX_IDLE_S": "1"}
    draw = random.Random(5)
    rows = [[draw.gauss(0, 1) for _ in range(16)] for _ in range(600)]
    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)
        name = http.new_collection(dimensions=16, hot_capacity=50)
        http.write(name, *({"id": f"d{n}", "text": f"text {n}", "vector": row} for n, row in enumerate(rows)))
        assert http.reindex(name)["status"] == "succeeded"

        def is_open(process: int) -> bool:
            maps = Path(f"/proc/{process}/maps").read_text()
            return f"/{name}/" in maps

        def is_at_rest() -> bool:
            held = http.ok("GET", f"/v1/collections/{name}")["tier_bytes"]
            return held["hot"] == held["cold"] == 0 and not any(map(is_open, children(server.pid)))

        def hits() -> list[Any]:
            found = [http.search(name, vector=rows[n], cache=False) for n in range(20)]
            return [
                (one["document_id"], round(one["score"], 6)) for answer in found for one in answer["hits"]
            ]

        before = hits()
        use_processes(http, name, mode="lexical")
        for number in range(3):
            wait_until(is_at_rest)
            new = {"id": f"new{number}", "text": f"added {number}", "vector": [float(number), *[1.0] * 15]}
            http.write(name, new)
            assert http.found(name, query=f"added {number}", mode="lexical", k=1) == [f"new{number}"]
            http.ok("DELETE", f"/v1/collections/{name}/documents/new{number}")
            assert hits() == before
            use_processes(http, name, mode="lexical")
            assert hits() == before
