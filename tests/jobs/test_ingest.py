"""Sending documents to a real service: busy, away, refusing, killed; each document is there once in the end."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from jobs.commands.ingest_output import progress_lines
from jobs.ingestion.ingesting import IngestProgress, find_collection, ingest
from jobs.serving.process import ServerProcess, serving
from jobs.sources import SourceDocument, SourceError, SourceReport
from nearline import AsyncClient, Patience, Refused, ServiceError
from retrieval.clients.bulk import LIMITS, Encoded, batches
from retrieval.clients.replies import retry_after_s
from retrieval.clients.wire.records import RequestLimits
from tests.jobs.test_commands import ROOT
from tests.jobs.test_sources import put
from tests.support.commands import nearline
from tests.support.doorway import Doorway, Turn
from tests.support.http import Http
from tests.support.stub import Reply, Stub

pytestmark = pytest.mark.model
BUSY: list[Turn] = ["busy"]
TOO_LARGE: list[Turn] = ["too large"]


def some(number: int, text: str = "A note.") -> list[SourceDocument]:
    return [
        SourceDocument(id=f"n{at}", text=f"{text} It has the number {at}.", source=f"notes.jsonl:{at}")
        for at in range(number)
    ]


def send(
    url: str, collection: str, documents: Iterable[SourceDocument], report: SourceReport | None = None
) -> IngestProgress:
    async def run() -> IngestProgress:
        async with AsyncClient(url) as client:
            return await ingest(client, collection, documents, lambda _: None, report)

    return asyncio.run(run())


def count(http: Http, collection: str) -> int:
    return int(http.ok("GET", f"/v1/collections/{collection}")["documents"])


# -- what one request holds


def test_a_collection_tells_what_a_request_may_hold(http: Http) -> None:
    """The limits that ingest follows are part of the answer, when it is made, shown and listed."""
    name = http.new_collection()
    limits = http.ok("GET", f"/v1/collections/{name}")["limits"]
    assert set(limits) == {"documents_per_request", "document_bytes", "request_bytes", "metadata_keys"}
    assert limits["request_bytes"] == 32 * 1024 * 1024
    assert {"limits": limits}.items() <= http.ok("GET", "/v1/collections")["collections"][0].items()


def batched(documents: list[dict[str, Any]], **limits: Any) -> tuple[list[list[Encoded]], list[Refused]]:
    refused: list[Refused] = []
    return list(batches(enumerate(documents), cast(RequestLimits, LIMITS | limits), refused.append)), refused


def notes(number: int) -> list[dict[str, Any]]:
    return [
        {"id": f"n{at}", "text": f"A note. It has the number {at}.", "metadata": {}} for at in range(number)
    ]


def test_batches_are_small_and_follow_the_limits() -> None:
    """200 documents, about 200,000 characters, the service's number and bytes; a larger document goes alone."""
    assert [len(batch) for batch in batched(notes(450))[0]] == [200, 200, 50]
    assert [len(batch) for batch in batched(notes(450), documents_per_request=150)[0]] == [150, 150, 150]
    texts = [1_000, 500_000, 1_000, 150_000, 60_000]
    documents = [{"id": str(at), "text": "x" * chars} for at, chars in enumerate(texts)]
    assert [[one.chars for one in batch] for batch in batched(documents)[0]] == [
        [1_000], [500_000], [1_000, 150_000], [60_000],
    ]  # fmt: skip
    for batch in batched(notes(100), request_bytes=2_000)[0]:
        body = json.dumps({"documents": [json.loads(one.body) for one in batch]}, separators=(",", ":"))
        assert 1_800 < len(body) <= 2_000 or batch[-1].id == "n99"


def test_batches_of_vectors_are_larger() -> None:
    """1,000 documents with vectors, or the service's number; of those without, 200 as ever."""
    with_vectors = [{**one, "vector": [1.0, 2.0]} for one in notes(2100)]
    assert [len(batch) for batch in batched(with_vectors)[0]] == [1000, 1000, 100]
    assert [len(batch) for batch in batched(with_vectors, documents_per_request=900)[0]] == [900, 900, 300]
    mixed = [with_vectors[at] if at % 2 else one for at, one in enumerate(notes(1000))]
    assert [len(batch) for batch in batched(mixed)[0]] == [400, 400, 200]


@pytest.mark.parametrize(
    ("took_ms", "chars"), [(100_000, 2_000), (4_000, 25_000), (1_000, 100_000), (10, 200_000)]
)
def test_a_request_takes_the_service_seconds(took_ms: int, chars: int) -> None:
    """At the pace of those before it, within bounds. The first ones are small, and one that was unchanged says nothing
    about the pace."""
    documents = [{"id": str(at), "text": "x" * 1_000} for at in range(300)]
    shown = Reply({"name": "c", "limits": LIMITS})
    unchanged = Reply({"seq": 1, "documents": 0, "unchanged": 20, "passages": 0, "took_ms": 1})
    written = Reply({"seq": 1, "documents": 20, "passages": 20, "took_ms": took_ms})

    async def run(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.ingest("c", documents, requests=1)

    with Stub(shown, unchanged, written) as stub:
        asyncio.run(run(stub.url))
    sizes = [1_000 * len(body["documents"]) for method, *_, body in stub.seen if method == "POST"]
    # A batch is read while the one before is under way.
    assert sizes[:3] == [20_000] * 3
    assert sizes[4] == min(chars, 300_000 - sum(sizes[:4]))


def test_an_id_that_comes_twice_is_in_two_batches() -> None:
    """The service refuses a request that holds an id twice."""
    found, _ = batched([{"id": name, "text": "x"} for name in "abab"])
    assert ["".join(str(one.id) for one in batch) for batch in found] == ["ab", "ab"]


def test_what_no_request_can_hold_fails_by_itself() -> None:
    """A text or body over the service's limits, and text that is no Unicode, are named without being sent."""
    documents: list[dict[str, Any]] = [
        {"id": "long", "text": "ä" * 60},
        {"id": "wide", "text": "x", "metadata": {"key": "y" * 300}},
        {"id": "bytes", "text": "\udcff"},
        {"id": "fine", "text": "x"},
    ]
    (batch,), refused = batched(documents, document_bytes=100, request_bytes=300)
    assert [(one.position, one.id) for one in batch] == [(3, "fine")]
    assert [(one.position, one.id) for one in refused] == [(0, "long"), (1, "wide"), (2, "bytes")]
    assert refused[0].reason == "text has 120 bytes, at most 100 are allowed"


# -- refusals


def test_what_the_service_refuses_is_taken_out(http: Http, service: ServerProcess) -> None:
    """The others of the same request are written; each refusal has its source and the service's reason."""
    name = http.new_collection()
    documents = some(30)
    documents[3] = SourceDocument(id="x" * 600, text="An id too long.", source="ids.csv:4")
    documents[17] = SourceDocument(id="nul", text="A \0 in it.", source="nul.txt")
    report = SourceReport()
    done = send(service.url, name, documents, report)
    assert (done.documents, count(http, name)) == (28, 28)
    assert [(one.source, one.reason) for one in report.failed] == [
        ("ids.csv:4", "id is longer than 512 characters"),
        ("nul.txt", "text holds a NUL character"),
    ]


def test_a_request_that_is_too_large_for_a_proxy_is_halved(http: Http, service: ServerProcess) -> None:
    """Until it is one document, which then fails by itself."""
    name, report = http.new_collection(), SourceReport()
    with Doorway(service.url, *TOO_LARGE * 3) as door:
        assert send(door.url, name, some(4), report).documents == 3
    assert [one.source for one in report.failed] == ["notes.jsonl:0"]
    assert count(http, name) == 3


def test_without_a_report_the_first_refusal_is_an_error(http: Http, service: ServerProcess) -> None:
    """Benchmarks and the demo must not go on with less than they were given."""
    bad = SourceDocument(id="nul", text="A \0 in it.", source="nul.txt")
    with pytest.raises(SourceError, match=r"nul\.txt: text holds a NUL character"):
        send(service.url, http.new_collection(), [bad])


def test_the_last_of_an_id_counts(http: Http, service: ServerProcess) -> None:
    """Also where requests go side by side."""
    name = http.new_collection()
    documents = [SourceDocument(id=f"n{at % 7}", text=f"Version {at}.") for at in range(70)]
    send(service.url, name, documents)
    found = http.ok("POST", f"/v1/collections/{name}/documents/scroll", {})["documents"]
    assert {one["text"] for one in found} == {f"Version {at}." for at in range(63, 70)}


def test_progress_stops_before_what_is_not_acknowledged(http: Http, service: ServerProcess) -> None:
    """The second request may be done before the first; the source counts as read up to the first one under way."""
    documents = [dataclasses.replace(one, bytes_read=at + 1) for at, one in enumerate(some(400))]
    seen: list[tuple[int, int]] = []

    async def run(url: str) -> None:
        async with AsyncClient(url) as client:
            name = http.new_collection()
            await ingest(client, name, documents, lambda now: seen.append((now.documents, now.bytes_read)))

    with Doorway(service.url, "busy") as door:
        asyncio.run(run(door.url))
    settled = dict.fromkeys([(0, 0), *seen])  # it is told every second, too
    assert list(settled)[1:] == [(200, 0), (400, 0), (400, 200), (400, 400)]


# -- busy and away


def test_a_busy_service_is_waited_for_as_it_asks(http: Http, service: ServerProcess) -> None:
    """Twenty refusals in a row are no reason to stop, and the time asked for passes before each new try."""
    name = http.new_collection()
    with Doorway(service.url, *BUSY * 20, retry_after="0") as door:
        assert send(door.url, name, some(10)).documents == 10
    assert door.writes == [*BUSY * 20, "pass"]
    with Doorway(service.url, "busy", retry_after="1") as door:
        begun = time.monotonic()
        send(door.url, name, some(10))
        assert time.monotonic() - begun >= 1


def test_it_gives_up_where_nothing_goes_on(http: Http, service: ServerProcess) -> None:
    """Not before its patience is over, and with the service's own words."""

    async def write(door: Doorway) -> None:
        async with AsyncClient(door.url) as client:
            patience = Patience(busy_s=0.2, away_s=60, try_s=300)
            await client.write(http.new_collection(), [{"id": "a", "text": "x"}], patience=patience)

    with Doorway(service.url, *BUSY * 10_000, retry_after="0") as door:
        with pytest.raises(ServiceError, match="much waits already"):
            asyncio.run(write(door))
        assert len(door.writes) > 1


@pytest.mark.slow
def test_ingest_waits_for_the_collection_that_it_creates(tmp_path: Path) -> None:
    """As long as the service asks, as for the documents themselves, also more than once."""
    error = {"error": {"type": "overloaded", "message": "much is under way"}}
    busy = Reply(error, 429, {"Retry-After": "1"})
    none = Reply({"error": {"type": "not_found", "message": "no collection"}}, 404)
    (tmp_path / "a.txt").write_text("A line.")
    made = Reply({"name": "c", "limits": LIMITS}, 201)
    written = Reply({"seq": 1, "documents": 1, "passages": 1, "took_ms": 1})
    with Stub(busy, none, busy, busy, made, busy, written) as stub:
        ended = nearline("ingest", tmp_path / "a.txt", "--url", stub.url, "-c", "new", "--create")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("1 document written to new")
    assert [method for method, *_ in stub.seen] == [*["GET"] * 2, *["POST"] * 5]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("away", [Reply(status=502), Reply(cut=True)], ids=["gone", "cut"])
def test_the_first_requests_wait_for_a_restart_too(tmp_path: Path, away: Reply, sync: bool) -> None:
    """Those that look for the collection, create it, and ask for its documents. One that a broken connection has
    created is found."""
    none = Reply({"error": {"type": "not_found", "message": "no collection"}}, 404)
    taken = Reply({"error": {"type": "conflict", "message": "it exists"}}, 409)
    body = {"name": "new", "tenant": "", "seq": 0, "limits": LIMITS, "model": "m", "language": ""}
    found = Reply({**body, "dimensions": 384})
    written = Reply({"seq": 1, "documents": 1, "passages": 1, "took_ms": 1})
    scrolled = Reply({"documents": [], "cursor": None})
    put(tmp_path, "docs/a.txt", "A line.")
    replies = [away, none, away, taken, away, found]
    more = ["--sync", "--state", tmp_path / "state"] if sync else []
    replies += [away, scrolled, written, scrolled] if sync else [written]
    with Stub(*replies) as stub:
        ended = nearline("ingest", tmp_path / "docs", "--url", stub.url, "-c", "new", "--create", *more)
    assert ended.returncode == 0, ended.stderr
    assert "1 document written to new" in ended.stdout
    assert len(stub.seen) == len(replies)


@pytest.mark.parametrize("create", [None, {}])
def test_why_the_service_is_waited_for_is_told_before_the_first_document(
    create: dict[str, Any] | None,
) -> None:
    """The collection is asked for first, and that may take as long as a node is away."""
    told: list[IngestProgress] = []

    async def ask(url: str) -> None:
        async with AsyncClient(url) as client:
            await find_collection(client, "docs", create, told.append)

    busy = Reply({"error": {"type": "overloaded", "message": "a node is away"}}, 503, {"Retry-After": "2"})
    with Stub(
        busy, Reply({"name": "c", "limits": LIMITS, "model": "m", "language": "", "dimensions": 384})
    ) as stub:
        asyncio.run(ask(stub.url))
    assert told[0].waits_because == "a node is away"
    assert told[0].waiting_s > 0


@pytest.mark.parametrize("sync", [False, True])
def test_the_collection_is_asked_for_its_limits_once(tmp_path: Path, sync: bool) -> None:
    """Not again for each of its requests."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.csv").write_text("text\n" + "A line.\n" * 1001)
    body = {"name": "docs", "tenant": "", "seq": 1, "limits": {**LIMITS, "documents_per_request": 1000}}
    shown, written = (
        Reply(body),
        Reply({"seq": 1, "documents": 0, "unchanged": 200, "passages": 0, "took_ms": 1}),
    )
    none = [Reply({"documents": [], "cursor": None})] if sync else []
    options = ["--sync", "--state", tmp_path / "state"] if sync else []
    with Stub(shown, *none, written) as stub:
        ended = nearline("ingest", tmp_path / "docs", "--url", stub.url, "-c", "docs", *options)
    assert ended.returncode == 0, ended.stderr
    assert [method for method, *_ in stub.seen].count("GET") == 1
    assert len(stub.seen) > 5


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "1", "Retry-After-Ms": "250"}, 0.25),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_when_to_try_again(headers: dict[str, str], seconds: float | None) -> None:
    """The finer header counts; a date, which only proxies send, does not."""
    assert retry_after_s(headers) == seconds


def test_a_connection_that_breaks_is_tried_again(http: Http, service: ServerProcess) -> None:
    """Before the service wrote or after it: every document is there once."""
    name = http.new_collection()
    with Doorway(service.url, "cut", "pass", "cut after", "cut") as door:
        done = send(door.url, name, some(450))
    assert count(http, name) == 450
    assert done.documents + done.unchanged == 450
    assert sorted(door.writes) == ["cut", "cut", "cut after", "pass", "pass", "pass"]


@pytest.mark.slow
def test_a_service_that_is_restarted_meanwhile(tmp_path: Path, model_folder: Path) -> None:
    """A crash in the middle costs nothing but the time until it is back."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    first = ServerProcess(tmp_path / "data", environ)
    Http(first.url).ok("POST", "/v1/collections", {"name": "notes"})
    (tmp_path / "notes.jsonl").write_text(rows(600))
    with Doorway(first.url) as door:
        with started("ingest", tmp_path / "notes.jsonl", "--url", door.url, "-c", "notes", "--json") as run:
            wait_for(Http(first.url), "notes", 100, run)
            first.kill()
            with serving(tmp_path / "data", environ) as second:
                door.target = second.url
                out, err = run.communicate(timeout=240)
                assert run.returncode == 0, err
                assert json.loads(out)["failures"] == 0
                assert count(Http(second.url), "notes") == 600


# -- killed, and run again


def rows(number: int) -> str:
    return "".join(json.dumps({"id": f"d{at}", "text": f"Number {at}. " * 20}) + "\n" for at in range(number))


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jobs.cli", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(http: Http, collection: str, documents: int, run: subprocess.Popen[str]) -> None:
    while run.poll() is None and count(http, collection) < documents:
        time.sleep(0.05)


def test_an_ingest_that_was_killed_is_run_again(http: Http, service: ServerProcess, tmp_path: Path) -> None:
    """Killed halfway and run again, every document is there, once."""
    (tmp_path / "many.jsonl.gz").write_bytes(gzip.compress(rows(600).encode()))
    name = http.new_collection()
    arguments = ["ingest", tmp_path, "--url", service.url, "-c", name]
    with started(*arguments) as run:
        wait_for(http, name, 100, run)
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    assert 100 <= count(http, name) < 600
    ended = nearline(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    done = json.loads(ended.stdout)
    assert done["unchanged"] >= 100
    assert done["documents"] + done["unchanged"] == 600
    assert http.ok("POST", f"/v1/collections/{name}/documents/count", {})["documents"] == 600


# -- the command


def test_a_folder_as_people_have_them(http: Http, service: ServerProcess, tmp_path: Path) -> None:
    """Everything readable is written; what failed is named with its line, and is the exit code."""
    folder = tmp_path / "stuff"
    folder.mkdir()
    (folder / "README").write_text("What this is about.")
    (folder / "changelog.Debian.gz").write_bytes(gzip.compress(b"A new release."))
    (folder / "latin.txt").write_bytes("Käse".encode("latin-1"))
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    (folder / "rows.jsonl").write_text(
        '{"id": 1, "text": "fine"}\n{"id": 2}\n{"id": 3, "text": "a\\u0000b"}\n'
    )
    (folder / "prices.csv").write_text(
        "id,text,price,zip\n1a,A lamp.,12.5,01234\n,No id.,1,2\n2a,A desk.,80,80331\n"
    )
    name = http.new_collection()
    arguments = ["ingest", folder, "--url", service.url, "-c", name]
    ended = nearline(*arguments, COLUMNS="")
    assert ended.returncode == 1
    assert ended.stdout.startswith(f"5 documents written to {name}: 5 passages, ")
    assert "types: price number, zip string" in ended.stdout
    assert "5 failed:" in ended.stderr
    for place in ["cut.txt.gz", "latin.txt:1:2", "prices.csv:3", "rows.jsonl:2", "rows.jsonl:3"]:
        assert f"  {folder / place}: " in ended.stderr
    assert http.found(name, query="*", mode="lexical") == []
    condition = {"type": "gt", "key": "price", "value": 20}
    assert http.found(name, query="furniture", filter=condition) == ["2a"]

    again = nearline(*arguments, "--json", "--lenient", "--exclude", "*.gz", "--types", "zip=number")
    assert again.returncode == 0, again.stderr
    value = json.loads(again.stdout)
    assert value["documents"] + value["unchanged"] == 4
    assert (value["excluded"], value["failures"], len(value["failed"])) == (2, 4, 4)
    assert value["types"] == {"price": "number", "zip": "number"}
    assert {"source": f"{folder}/rows.jsonl:3", "reason": "text holds a NUL character"} in value["failed"]


def test_many_failures_are_shown_in_part(http: Http, service: ServerProcess, tmp_path: Path) -> None:
    """The first twenty, and how many more there are; JSON has all."""
    (tmp_path / "bad.jsonl").write_text("no json\n" * 50)
    arguments = ["ingest", tmp_path, "--url", service.url, "-c", http.new_collection()]
    ended = nearline(*arguments)
    assert ended.returncode == 1
    assert "50 failed:" in ended.stderr
    assert "bad.jsonl:20:5: not JSON" in ended.stderr
    assert "bad.jsonl:21:" not in ended.stderr
    assert "and 30 more" in ended.stderr
    assert len(json.loads(nearline(*arguments, "--json").stdout)["failed"]) == 50


def test_a_language_and_an_expiry_from_rows(http: Http, service: ServerProcess, tmp_path: Path) -> None:
    """Reach the documents; values that the service refuses are failures of their lines."""
    lines = tmp_path / "a.jsonl"
    rows = [("en", "2099-01-31"), ("klingon tongue", "2099-01-31"), ("de", "in June")]
    lines.write_text(
        "".join(
            json.dumps({"id": at, "text": "x", "language": language, "expires_at": expires}) + "\n"
            for at, (language, expires) in enumerate(rows)
        )
    )
    name = http.new_collection()
    fields = ["--language-field", "language", "--expires-field", "expires_at"]
    ended = nearline("ingest", lines, "--url", service.url, "-c", name, *fields)
    assert ended.returncode == 1
    assert f"{lines}:2: language" in ended.stderr
    assert f"{lines}:3: expires_at" in ended.stderr
    (one,) = http.ok("POST", f"/v1/collections/{name}/documents/scroll", {})["documents"]
    assert (one["language"], one["expires_at"][:10]) == ("en", "2099-01-31")


@pytest.mark.parametrize("sync", [False, True])
def test_nothing_to_read_is_said(http: Http, service: ServerProcess, tmp_path: Path, sync: bool) -> None:
    """What was looked for, and what was skipped; the exit code is 1, since nothing was done."""
    folder, name = tmp_path / "docs", http.new_collection()
    folder.mkdir()
    options = ["--sync", "--state", tmp_path / "state"] if sync else []
    arguments = ["ingest", folder, "--url", service.url, "-c", name, *options]

    def said(*more: object) -> str:
        ended = nearline(*arguments, *more)
        assert ended.returncode == 1, ended.stdout
        return ended.stdout + ended.stderr

    assert f"nothing to read in {folder}: it is empty" in said()
    (folder / "a.png").write_bytes(b"x")
    (folder / ".hidden.md").write_text("x")
    text = said()
    assert f"nothing to read in {folder}: all that is there was skipped" in text
    assert ".md" in text
    assert "1 files of other kinds (1 .png)" in text
    assert "nothing to read" in said("--json")
    assert nearline(*arguments, "--lenient").returncode == 0
    (folder / "a.md").write_text("Text.")
    assert nearline(*arguments).returncode == 0


def test_a_type_for_no_column_is_a_failure(http: Http, service: ServerProcess, tmp_path: Path) -> None:
    """A slip in the name would otherwise go unseen; one in the type is refused."""
    (tmp_path / "a.csv").write_text("id,text,price\n1,x,2\n")
    arguments = ["ingest", tmp_path, "--url", service.url, "-c", http.new_collection()]
    ended = nearline(*arguments, "--types", "prise=number")
    assert ended.returncode == 1
    assert "--types: nothing that was read has a column, field or key 'prise'" in ended.stderr
    assert "there are price" in ended.stderr
    ended = nearline(*arguments, "--types", "price=money")
    assert (ended.returncode, "expected COLUMN=TYPE" in ended.stderr) == (1, True)


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines on stderr tell what is acknowledged, how fast it goes, and how long it will take."""
    on_progress = progress_lines(1000, "bytes_read", "documents", every_s=0)
    on_progress(IngestProgress(documents=1200, unchanged=34, tokens=5000, bytes_read=250, seconds=2.0))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("1,234 documents, 25%, 2,500 tokens/s, ")
    assert line.endswith(" s left")
    on_progress(IngestProgress(documents=1, bytes_read=250, waiting_for="book.txt", waiting_s=75.2))
    assert capsys.readouterr().err.endswith(", 75 s on book.txt\n")
    on_progress = progress_lines(1000, "bytes_read", "documents", every_s=60)
    on_progress(IngestProgress(documents=1))
    assert capsys.readouterr().err == ""
