"""The log of queries: off by default, bounded, gone with its collection, and never in a search's way."""

from __future__ import annotations

import asyncio
import random
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from indexes.collection.collection import Collection
from jobs.serving.process import serving
from retrieval.base.settings import QueryLogSection as Settings
from retrieval.upkeep.line_file import Header, decode, read_lines
from retrieval.upkeep.query_log import FILE, LoggedQuery, QueryLog
from retrieval.upkeep.questions import QUESTIONS_MIN
from retrieval.wire.search import SearchRequest
from tests.support.http import Http
from tests.support.vectors import make_collection

DAY_S = 86_400
NOON = 20_000 * DAY_S + DAY_S / 2


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    made = make_collection(tmp_path / "c")
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def raw(condition: object) -> msgspec.Raw:
    """A value as it stands in a request."""
    return msgspec.Raw(msgspec.json.encode(condition))


def a_log(clock: Clock, **settings: object) -> QueryLog:
    return QueryLog(Settings(**{"enabled": True, **settings}), now=clock, rng=random.Random(1))  # type: ignore[arg-type]


def note(log: QueryLog, collection: Collection, *texts: str) -> None:
    for text in texts:
        log.note(collection, SearchRequest(query=text))


def read(path: Path) -> tuple[Header, list[LoggedQuery]]:
    header, lines = read_lines(path)
    return header, [one for line in lines if (one := decode(line, LoggedQuery))]


def written(log: QueryLog, collection: Collection) -> list[str]:
    asyncio.run(log.write([collection]))
    return [one.query for one in read(collection.folder / FILE)[1]]


def test_a_sample_can_be_forgotten(collection: Collection, clock: Clock) -> None:
    """With its file, also where the log is switched off by now; what is asked later is kept again."""
    log = a_log(clock)
    note(log, collection, "refunds?")
    assert written(log, collection) == ["refunds?"]
    note(log, collection, "not yet written")
    asyncio.run(log.forget(collection))
    assert not (collection.folder / FILE).exists()
    note(log, collection, "shipping?")
    assert written(log, collection) == ["shipping?"]
    asyncio.run(a_log(clock, enabled=False).forget(collection))
    assert not (collection.folder / FILE).exists()


def test_the_file_holds_what_was_asked(collection: Collection, clock: Clock) -> None:
    """Text, k, mode, filter and time of each query, in a file that only its owner can read."""
    log = a_log(clock)
    condition = {"type": "eq", "key": "tenant", "value": "acme"}
    log.note(collection, SearchRequest(query="refunds?", k=7, mode="dense", filter=raw(condition)))
    asyncio.run(log.write([collection]))
    header, (one,) = read(collection.folder / FILE)
    assert (one.query, one.k, one.mode, one.filter) == ("refunds?", 7, "dense", condition)
    assert one.time_ms == NOON * 1000
    assert list(header.seen.values()) == [1]
    assert stat.S_IMODE((collection.folder / FILE).stat().st_mode) == 0o600


def test_what_measures_is_not_kept(collection: Collection, clock: Clock) -> None:
    """Exact searches, those past the cache, those without a text and huge ones leave no trace."""
    log = a_log(clock)
    for search in (
        SearchRequest(query="x", exact=True, mode="dense"),
        SearchRequest(query="x", cache=False),
        SearchRequest(vector=raw([1.0])),
        SearchRequest(query="x", filter=raw({"type": "in", "key": "k", "value": ["v" * 100] * 200})),
    ):
        log.note(collection, search)
    note(log, collection, "kept")
    assert written(log, collection) == ["kept"]


def test_a_day_is_a_fair_sample_of_bounded_size(collection: Collection, clock: Clock) -> None:
    """Of 20,000 queries 500 are kept, as many early ones as late ones."""
    log = a_log(clock, queries_per_day_max=500)
    note(log, collection, *map(str, range(20_000)))
    kept = [int(text) for text in written(log, collection)]
    assert len(set(kept)) == 500
    assert read(collection.folder / FILE)[0].seen.popitem()[1] == 20_000
    quarters = [sum(one // 5000 == quarter for one in kept) for quarter in range(4)]
    assert min(quarters) > 85, quarters  # 125 expected; the deviation of a fair sample is 10


def test_the_file_is_bounded_in_bytes(collection: Collection, clock: Clock) -> None:
    """Beyond the bound the oldest go."""
    log = a_log(clock, file_bytes_max=5000)
    for number in range(200):
        clock.now += 1
        note(log, collection, f"query {number}")
    kept = written(log, collection)
    assert 10 < len(kept) < 200
    assert kept == [f"query {number}" for number in range(200 - len(kept), 200)]
    assert (collection.folder / FILE).stat().st_size <= 5000


def test_old_days_are_forgotten(collection: Collection, clock: Clock) -> None:
    """With three days kept, the fourth day takes the first away."""
    log = a_log(clock, days=3)
    for day in range(4):
        clock.now = NOON + day * DAY_S
        note(log, collection, f"day {day}")
    assert written(log, collection) == ["day 1", "day 2", "day 3"]


def test_old_days_are_forgotten_in_silence(collection: Collection, clock: Clock) -> None:
    """Nobody has to ask for it: what is too old leaves the file at the next writing, also after a restart."""
    first = a_log(clock, days=2)
    note(first, collection, "old")
    assert written(first, collection) == ["old"]
    clock.now += DAY_S
    assert written(first, collection) == ["old"]
    clock.now += DAY_S
    assert written(first, collection) == []
    clock.now = NOON
    note(first, collection, "kept", "while", "stopped")
    written(first, collection)
    clock.now += 30 * DAY_S
    second = a_log(clock, days=2)
    second.load([collection])
    assert written(second, collection) == []
    assert b"kept" not in (collection.folder / FILE).read_bytes()


def test_a_day_stays_fair_after_its_oldest_have_gone(collection: Collection, clock: Clock) -> None:
    """A restart with a file that was cut in bytes does not take every query from then on."""
    settings = {"queries_per_day_max": 300, "file_bytes_max": 5000}
    first = a_log(clock, **settings)
    note(first, collection, *map(str, range(9000)))
    assert len(written(first, collection)) < 100
    second = a_log(clock, **settings)
    second.load([collection])
    note(second, collection, *(f"later {number}" for number in range(1000)))
    (day,) = second._samples[collection.uid].days.values()
    later = sum(one.query.startswith("later") for one in day.kept)
    assert later < 80, later  # of 1,000 after 9,000, about one in 30; the deviation is 6


def test_a_lower_bound_holds_at_once(collection: Collection, clock: Clock) -> None:
    """What the file has too many of goes after the next start, early ones and late ones alike."""
    first = a_log(clock, queries_per_day_max=400)
    for number in range(400):
        clock.now += 1
        note(first, collection, str(number))
    assert len(written(first, collection)) == 400
    second = a_log(clock, queries_per_day_max=100)
    second.load([collection])
    kept = [int(text) for text in written(second, collection)]
    assert len(set(kept)) == 100
    assert 25 < sum(one < 200 for one in kept) < 75


def test_it_survives_a_restart(collection: Collection, clock: Clock) -> None:
    """A new process goes on with the sample and its counts, and a file of another collection counts for nothing."""
    first = a_log(clock)
    note(first, collection, "before")
    written(first, collection)
    second = a_log(clock)
    second.load([collection])
    note(second, collection, "after")
    assert written(second, collection) == ["before", "after"]
    assert list(read(collection.folder / FILE)[0].seen.values()) == [2]
    content = (collection.folder / FILE).read_bytes().replace(collection.uid.encode(), b"0" * 32)
    (collection.folder / FILE).write_bytes(content)
    third = a_log(clock)
    third.load([collection])
    note(third, collection, "mine")
    assert written(third, collection) == ["mine"]


def at(time_ms: int) -> bytes:
    """A file whose only query came at that time."""
    query = b'{"time_ms":%d,"query":"q","k":null,"mode":null,"filter":null}' % time_ms
    return b'{"version":1,"uid":"UID","seen":{}}\n' + query + b"\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json\n",
        b'{"version":9,"uid":"","seen":{}}\n',
        b"\xff\xfe",
        at(10**15),
        at(2**62),
        at(-(2**62)),
        at(10**400),
    ],
)
def test_a_damaged_file_is_begun_anew(collection: Collection, clock: Clock, content: bytes) -> None:
    """It stops neither the start nor the log, whether it is no JSON or holds what no clock ever showed."""
    (collection.folder / FILE).write_bytes(content.replace(b"UID", collection.uid.encode()))
    log = a_log(clock)
    log.load([collection])
    note(log, collection, "first")
    assert written(log, collection) == ["first"]


def test_switched_off_it_does_nothing(collection: Collection, clock: Clock) -> None:
    """It keeps nothing and touches no file, also not one from before; off is the default."""
    assert not Settings().enabled
    (collection.folder / FILE).write_bytes(b"from before")
    log = a_log(clock, enabled=False)
    log.load([collection])
    note(log, collection, "secret")
    asyncio.run(log.write([collection]))
    assert (collection.folder / FILE).read_bytes() == b"from before"


def test_a_full_disk_is_waited_out(collection: Collection, clock: Clock) -> None:
    """Writing to a full device raises nothing; the next time everything is there."""
    log = a_log(clock)
    (collection.folder / f".{FILE}.draft").symlink_to("/dev/full")
    note(log, collection, "one")
    asyncio.run(log.write([collection]))
    assert not (collection.folder / FILE).exists()
    note(log, collection, "two")
    assert written(log, collection) == ["one", "two"]


def test_a_deleted_collection_is_forgotten(tmp_path: Path, clock: Clock) -> None:
    """What was noted of it is never written, also not into a new one of its name."""
    log = a_log(clock)
    old = make_collection(tmp_path / "gone")
    note(log, old, "secret")
    old.close()
    (tmp_path / "gone").rename(tmp_path / "away")
    new = make_collection(tmp_path / "gone")
    note(log, new, "fresh")
    assert written(log, new) == ["fresh"]
    asyncio.run(log.write([]))
    note(log, new, "again")
    assert written(log, new) == ["again"]
    new.close()


# --- in a real service ------------------------------------------------------------------------------------------


def on(model_folder: Path) -> dict[str, str]:
    return {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_QUERY_LOG_ENABLED": "true",
        "NEARLINE_QUERY_LOG_WRITE_EVERY_S": "0.1",
    }


def queries_in(path: Path) -> list[str]:
    return [one.query for one in read(path)[1]] if path.exists() else []


def wait_for(path: Path, queries: list[str]) -> None:
    deadline = time.monotonic() + 20
    while (found := queries_in(path)) != queries:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.slow
def test_a_service_keeps_a_log_where_it_is_told_to(tmp_path: Path, model_folder: Path) -> None:
    """Searches, batches and contexts are noted, by whatever name; a full disk fails none; deletion takes the file."""
    data = tmp_path / "data"
    with serving(data, on(model_folder)) as server:
        http = Http(server.url)
        name = http.new_collection()
        path = data / name / FILE
        http.write(name, {"id": "a", "text": "Apples grow on trees."})
        http.ok("PUT", "/v1/aliases/other", {"collection": name})
        (data / name / f".{FILE}.draft").symlink_to("/dev/full")
        http.search(name, query="one")
        wait_for(path, ["one"])
        http.search("other", query="two")
        http.search(name, query="two", cache=False)
        http.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": [{"query": "three"}, {"k": 0}]})
        http.ok("POST", f"/v1/collections/{name}/context", {"query": "four", "token_budget": 50})
        wait_for(path, ["one", "two", "three", "four"])
    with serving(data, on(model_folder)) as server:
        http = Http(server.url)
        http.search(name, query="five")
        wait_for(path, ["one", "two", "three", "four", "five"])
        http.ok("DELETE", "/v1/aliases/other")
        http.ok("DELETE", f"/v1/collections/{name}")
        assert not path.parent.exists()


@pytest.mark.slow
def test_a_rebuild_measures_with_what_was_asked(tmp_path: Path, model_folder: Path) -> None:
    """With enough different queries in the log a rebuild's recall rests on them, and with fewer on synthetic ones."""
    with serving(tmp_path / "data", on(model_folder)) as server:
        http = Http(server.url)
        name = http.new_collection()
        http.write(name, *({"id": str(n), "text": f"Lantern {n} of the harbor."} for n in range(20)))

        def evidence(asked: range) -> Any:
            for begin in range(asked.start, asked.stop, 100):
                some = [{"query": f"where is lantern {n}?"} for n in asked[begin - asked.start :][:100]]
                http.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": some})
            http.reindex(name)
            return http.ok("GET", f"/v1/collections/{name}")["recall_evidence"]

        few = evidence(range(QUESTIONS_MIN - 1))
        assert few["source"] == "synthetic queries"
        enough = evidence(range(QUESTIONS_MIN - 1, QUESTIONS_MIN))
        assert (enough["source"], enough["queries"]) == ("logged queries", QUESTIONS_MIN // 2)
        assert set(enough["intervals"]) <= {"all", "hot", "cold"}


def test_by_default_a_service_keeps_none(tmp_path: Path, model_folder: Path) -> None:
    """After searching and stopping there is no file."""
    data = tmp_path / "data"
    with serving(data, {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        http = Http(server.url)
        name = http.new_collection()
        http.write(name, {"id": "a", "text": "Apples grow on trees."})
        http.search(name, query="apples")
    assert (data / name / "log.db").exists()
    assert not list(data.rglob("*queries*"))
