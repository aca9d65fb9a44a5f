"""OpenAI's vector stores and files, spoken by OpenAI's own client against a real service."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import signal
import stat
import subprocess
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from indexes.base.errors import Damaged, InvalidInput, NotFound, TooLarge
from indexes.base.model import IndexOptions, Settings
from indexes.directory.catalog import Catalog
from indexes.parts.learned import VectorStoreSettings
from jobs.serving.process import ServerProcess, serving
from jobs.sources import extraction
from retrieval.access.auth import PRINCIPAL, Principal
from retrieval.base.settings import Config, FilesSection
from retrieval.dialects import file_batches, store_expiry
from retrieval.dialects.file_batches import FileBatch
from retrieval.documents.extracting import AT_ONCE, TextExtractor
from retrieval.documents.uploads import BLOCK_BYTES, DAY_S, FOLDER, Upload, Uploads, read_all, text_of
from retrieval.handlers.state import CATALOG, METRICS, PROCESSES, STORE, TASKS, USED
from retrieval.observe.metrics import Metrics
from retrieval.processes.pool import SearchProcesses
from retrieval.upkeep.tasks import Tasks
from tests.support.commands import nearline
from tests.support.files import docx, pdf, xlsx
from tests.support.http import Http

REFUNDS = b"# Refunds\n\nYou get your money back within fourteen days.\n"
SHIPPING = "# Versand\n\nParcels leave on weekdays; größere am Freitag.\n".encode()


@pytest.fixture
def client(service: ServerProcess) -> OpenAI:
    return OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def store(client: OpenAI) -> str:
    """The id of a vector store with two files."""
    made = client.vector_stores.create(name="Support FAQ")
    for name, content, lang in (("refunds.md", REFUNDS, "en"), ("shipping.md", SHIPPING, "de")):
        client.vector_stores.files.upload_and_poll(
            vector_store_id=made.id,
            file=(name, content),
            attributes={"lang": lang, "year": 2026, "public": True},
        )
    return made.id


def test_from_an_upload_to_a_search(client: OpenAI, store: str) -> None:
    """What the client uploads and polls is found by its meaning, with name, attributes and a score from 0 to 1."""
    page = client.vector_stores.search(store, query="how long do I wait for my money?", max_num_results=1)
    assert page.to_dict()["search_query"] == ["how long do I wait for my money?"]
    (found,) = page.data
    assert (found.filename, found.content[0].type) == ("refunds.md", "text")
    assert "fourteen days" in found.content[0].text
    assert found.attributes == {"lang": "en", "year": 2026, "public": True}
    assert 0 < found.score < 1
    assert found.file_id.startswith("file-")
    assert client.files.content(found.file_id).read() == REFUNDS


def test_answers_have_all_that_the_clients_types_need(client: OpenAI, store: str) -> None:
    """Each answer passes the strict validation of the client's own models."""
    (file, *_) = client.vector_stores.files.list(store)
    batch = client.vector_stores.file_batches.create_and_poll(store, file_ids=[file.id])
    answers: list[Any] = [
        client.vector_stores.retrieve(store),
        client.vector_stores.list().data[0],
        client.vector_stores.update(store, name="Other"),
        file,
        client.vector_stores.files.retrieve(file.id, vector_store_id=store),
        client.vector_stores.files.update(file.id, vector_store_id=store, attributes=None),
        client.files.retrieve(file.id),
        client.files.list().data[0],
        batch,
        client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store),
        client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store).data[0],
        client.vector_stores.search(store, query="money").data[0],
        client.vector_stores.files.delete(file.id, vector_store_id=store),
        client.files.delete(file.id),
        client.vector_stores.delete(store),
    ]
    for one in answers:
        type(one).model_validate(one.to_dict(), strict=True)


def test_several_queries_at_once(client: OpenAI, store: str) -> None:
    """Each passage comes once, with its best score, the most relevant first."""
    page = client.vector_stores.search(store, query=["when do parcels leave?", "money back"])
    assert page.to_dict()["search_query"] == ["when do parcels leave?", "money back"]
    assert sorted(one.filename for one in page.data) == ["refunds.md", "shipping.md"]
    scores = [one.score for one in page.data]
    assert scores == sorted(scores, reverse=True)
    alone = client.vector_stores.search(store, query="money back").data[0]
    assert alone.score == next(one.score for one in page.data if one.file_id == alone.file_id)


def test_filters_and_thresholds(client: OpenAI, store: str) -> None:
    """Attributes filter as OpenAI writes it; a threshold leaves out what scores less."""

    def names(**options: Any) -> list[str]:
        return [one.filename for one in client.vector_stores.search(store, query="money", **options)]

    assert names(filters={"type": "eq", "key": "lang", "value": "de"}) == ["shipping.md"]
    both: Any = [
        {"type": "gte", "key": "year", "value": 2026},
        {"type": "in", "key": "lang", "value": ["en"]},
    ]
    assert names(filters={"type": "and", "filters": both}) == ["refunds.md"]
    best = client.vector_stores.search(store, query="money").data[0]
    assert names(ranking_options={"ranker": "auto", "score_threshold": best.score}) == [best.filename]
    assert names(ranking_options={"score_threshold": 1.0}, rewrite_query=True) == []


def test_nulls_are_no_values(http: Http, store: str) -> None:
    """A gateway sends every field that it knows."""
    nulls = dict.fromkeys(("filters", "max_num_results", "ranking_options", "rewrite_query"))
    found = http.ok("POST", f"/v1/vector_stores/{store}/search", {"query": "money", **nulls})
    assert set(found) == {"object", "search_query", "data", "has_more", "next_page"}
    assert len(found["data"]) == 2


def test_a_collection_is_a_vector_store(client: OpenAI, http: Http) -> None:
    """Documents that came another way are its files, lists in their metadata as text; and the other way round."""
    name = http.new_collection()
    http.write(
        name, {"id": "a/b", "text": "Whales sing.", "title": "Whales", "metadata": {"tags": ["sea", 1]}}
    )
    assert client.vector_stores.retrieve(name).file_counts.total == 1
    (found,) = client.vector_stores.search(name, query="songs of the sea")
    assert (found.file_id, found.filename, found.attributes) == ("a/b", "Whales", {"tags": "sea, 1"})
    assert client.vector_stores.files.content("a/b", vector_store_id=name).data[0].text == "Whales sing."
    assert client.vector_stores.files.retrieve("a/b", vector_store_id=name).usage_bytes == 12
    file = client.files.create(file=("refunds.md", REFUNDS), purpose="user_data")
    client.vector_stores.files.create(name, file_id=file.id, attributes={"lang": "en"})
    found_by_us = http.search(name, query="money back", k=1)["hits"][0]
    assert (found_by_us["document_id"], found_by_us["title"]) == (file.id, "refunds.md")
    assert found_by_us["metadata"] == {"lang": "en"}


def test_names(client: OpenAI, http: Http) -> None:
    """A store may have any name, and two the same; its id is a name that a collection may have."""
    first, second = (client.vector_stores.create(name="Ärger & Übung 2026") for _ in range(2))
    assert first.id == "arger-ubung-2026"
    assert second.id.startswith("arger-ubung-2026-")
    assert first.name == second.name == "Ärger & Übung 2026"
    assert http.ok("GET", f"/v1/collections/{first.id}")["documents"] == 0
    plain = client.vector_stores.create(name="my_notes", metadata={"team": "support"})
    assert (plain.id, plain.metadata) == ("my_notes", {"team": "support"})
    assert client.vector_stores.create(name="日本語").id.startswith("vs_")
    assert client.vector_stores.create().name.startswith("vs_")
    renamed = client.vector_stores.update("my_notes", name="Notes", metadata={})
    assert (renamed.id, renamed.name, renamed.metadata) == ("my_notes", "Notes", {})
    assert client.vector_stores.retrieve("my_notes").name == "Notes"


def test_stores_are_listed_page_by_page(client: OpenAI) -> None:
    """The client's iteration sees each once, in both orders."""
    made = {client.vector_stores.create(name="listed").id for _ in range(3)}
    for order in ("asc", "desc"):
        ids = [one.id for one in client.vector_stores.list(limit=2, order=order)]
        assert made <= set(ids)
        assert ids == sorted(ids, reverse=order == "desc")
        last = client.vector_stores.list(limit=2, order=order, before=ids[-1])
        assert ([one.id for one in last.data], last.has_more) == (ids[-3:-1], len(ids) > 3)
        between = client.vector_stores.list(order=order, after=ids[0], before=ids[2]).data
        assert [one.id for one in between] == [ids[1]]
        assert client.vector_stores.list(order=order, before=ids[0]).data == []


def test_deleting(client: OpenAI, store: str, http: Http) -> None:
    """A file deleted from a store can be attached again; a deleted file is gone from every store."""
    file_id = next(one.id for one in client.vector_stores.files.list(store))
    other = client.vector_stores.create(name="other", file_ids=[file_id]).id
    assert client.vector_stores.files.delete(file_id, vector_store_id=store).deleted
    assert file_id not in {one.id for one in client.vector_stores.files.list(store)}
    with pytest.raises(NotFoundError):
        client.vector_stores.files.retrieve(file_id, vector_store_id=store)
    client.vector_stores.files.create(store, file_id=file_id)
    assert client.files.delete(file_id).deleted
    for one in (store, other):
        assert http.call("GET", f"/v1/collections/{one}/documents/{file_id}").status == 404
        assert file_id not in {hit.file_id for hit in client.vector_stores.search(one, query="money")}
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(NotFoundError):
            call(file_id)
    assert client.vector_stores.delete(store).deleted
    with pytest.raises(NotFoundError, match="no collection"):
        client.vector_stores.retrieve(store)


def test_deleting_a_file_spares_other_documents(client: OpenAI, http: Http) -> None:
    """Only ids of uploaded files are deleted everywhere: a document of another id is not a file."""
    name = http.new_collection()
    http.write(name, {"id": "refunds", "text": "x"})
    with pytest.raises(NotFoundError):
        client.files.delete("refunds")
    assert http.found(name, query="x") == ["refunds"]


def test_a_loop_that_deletes_what_it_lists(client: OpenAI, http: Http) -> None:
    """Nothing is left behind. The page after a file that is gone, and ended no page, begins at the start."""
    name = http.new_collection()
    http.write(name, *({"id": f"d{number}", "text": f"number {number}"} for number in range(7)))
    assert len(client.vector_stores.files.list(name, limit=3, after="gone").data) == 3
    for file in client.vector_stores.files.list(name, limit=3):
        client.vector_stores.files.delete(file.id, vector_store_id=name)
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 0


def test_a_loop_that_changes_what_it_lists(client: OpenAI, http: Http) -> None:
    """Each file comes once, although changing it moves it to the end; then what came in between is listed."""
    name = http.new_collection()
    http.write(name, *({"id": f"d{number}", "text": f"number {number}"} for number in range(10)))
    listed = []
    for file in client.vector_stores.files.list(name, limit=3):
        listed.append(file.id)
        client.vector_stores.files.update(file.id, vector_store_id=name, attributes={"seen": len(listed)})
        if file.id == "d5":
            http.write(name, {"id": "late", "text": "a late one"})
    assert listed == [f"d{number}" for number in range(10)]
    again = [one.id for one in client.vector_stores.files.list(name, limit=3)]
    assert sorted(again) == sorted([*listed, "late"])
    http.write(name, {"id": "last", "text": "the last one"})
    assert [one.id for one in client.vector_stores.files.list(name, after=again[-1])] == ["last"]


def test_files_are_listed_in_the_order_of_writing(client: OpenAI, http: Http) -> None:
    """Page by page, each once; another order is refused."""
    name = http.new_collection()
    http.write(name, *({"id": f"d{number}", "text": f"number {number}"} for number in range(7)))
    assert [one.id for one in client.vector_stores.files.list(name, limit=3)] == [f"d{at}" for at in range(7)]
    assert list(client.vector_stores.files.list(name, filter="failed")) == []
    with pytest.raises(BadRequestError, match="order must be asc"):
        client.vector_stores.files.list(name, order="desc")


def test_uploads_are_listed(client: OpenAI) -> None:
    """Newest first by default, a page at a time."""
    made = [client.files.create(file=(f"{at}.txt", b"text"), purpose="user_data").id for at in range(3)]
    assert {one.id for one in client.files.list(purpose="user_data", limit=2)} >= set(made)
    (first,) = client.files.list(limit=1, order="asc").data
    assert first.created_at <= client.files.list(limit=1).data[0].created_at


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_after_a_deleted_upload(client: OpenAI, order: Literal["asc", "desc"]) -> None:
    """It goes on where the file was, so that a loop that deletes what it lists sees each file once."""
    for at in range(4):
        client.files.create(file=(f"{at}.txt", b"text"), purpose="user_data")
    ids = [one.id for one in client.files.list(order=order)]
    client.files.delete(ids[1])
    assert [one.id for one in client.files.list(order=order, after=ids[1])] == ids[2:]


def test_batches(client: OpenAI, store: str) -> None:
    """Several files at once, uploaded by the client and polled; each may have attributes of its own."""
    batch = client.vector_stores.file_batches.upload_and_poll(
        store, files=[("a.txt", b"Bats listen."), ("b.txt", b"Owls see.")]
    )
    assert (batch.status, batch.file_counts.completed) == ("completed", 2)
    assert client.vector_stores.retrieve(store).file_counts.total == 4
    file = client.files.create(file=("c.txt", b"Cats purr."), purpose="assistants")
    client.vector_stores.file_batches.create(store, files=[{"file_id": file.id, "attributes": {"pet": True}}])
    assert client.vector_stores.files.retrieve(file.id, vector_store_id=store).attributes == {"pet": True}
    new = client.files.create(file=("d.txt", b"Dogs bark."), purpose="assistants").id
    with pytest.raises(NotFoundError, match="no file 'file-none'"):
        client.vector_stores.file_batches.create(store, file_ids=[new, "file-none"])
    with pytest.raises(NotFoundError, match="no file 'file-none'"):
        client.vector_stores.create(name="never-made", file_ids=["file-none"])
    assert client.vector_stores.retrieve(store).file_counts.total == 5
    with pytest.raises(NotFoundError, match="no collection"):
        client.vector_stores.retrieve("never-made")
    with pytest.raises(NotFoundError):
        client.vector_stores.file_batches.retrieve("vsfb_1", vector_store_id=store)


def test_a_file_that_a_batch_names_often_is_read_once(http: Http, client: OpenAI, store: str) -> None:
    """As the last entry says: a request of ten kilobytes would otherwise read one upload three hundred times."""
    file = client.files.create(file=("c.docx", docx("Cats", "Cats purr.")), purpose="assistants").id
    entries: list[Any] = [{"file_id": file, "attributes": {"at": at}} for at in range(100)]
    before = http.ok("GET", f"/v1/collections/{store}")["seq"]
    batch = client.vector_stores.file_batches.create(store, files=entries)
    assert (batch.file_counts.completed, batch.file_counts.total) == (1, 1)
    assert client.vector_stores.files.retrieve(file, vector_store_id=store).attributes == {"at": 99}
    assert http.ok("GET", f"/v1/collections/{store}")["seq"] == before + 1


@pytest.mark.parametrize("below", ["files", "file_batches/{batch}/files"])
def test_a_listing_by_an_unknown_status_is_refused(
    client: OpenAI, http: Http, store: str, below: str
) -> None:
    """An empty page would say that no file has it."""
    (file, *_) = client.vector_stores.files.list(store)
    batch = client.vector_stores.file_batches.create(store, file_ids=[file.id]).id
    path = f"/v1/vector_stores/{store}/{below.format(batch=batch)}"
    assert http.ok("GET", f"{path}?filter=cancelled")["data"] == []
    refused = http.call("GET", f"{path}?filter=done")
    assert (refused.status, refused.body["error"]["param"]) == (400, "filter")


def test_a_bad_file_of_a_batch(client: OpenAI, store: str) -> None:
    """Is counted as failed and listed with the reason; the others are written. A batch whose files all fail has
    failed."""
    good = [
        client.files.create(file=(f"{at}.txt", b"Bats listen."), purpose="assistants").id for at in (1, 2)
    ]
    bad = client.files.create(file=("scan.pdf", pdf("")), purpose="assistants").id
    batch = client.vector_stores.file_batches.create(store, file_ids=[good[0], bad, good[1]])
    assert batch.status == "completed"
    assert batch.file_counts.to_dict() == {
        "completed": 2, "total": 3, "in_progress": 0, "failed": 1, "cancelled": 0
    }  # fmt: skip
    assert client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store) == batch
    assert client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store) == batch

    def ids(**options: Any) -> list[str]:
        return [
            one.id
            for one in client.vector_stores.file_batches.list_files(
                batch.id, vector_store_id=store, **options
            )
        ]

    assert ids() == ids(limit=1) == [good[0], bad, good[1]]
    assert ids(order="desc", limit=2) == [good[1], bad, good[0]]
    assert ids(filter="completed") == good
    assert ids(before=good[1], limit=1) == [bad]
    (failed,) = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store, filter="failed")
    assert failed.status == "failed"
    assert failed.last_error is not None
    assert failed.last_error.code == "unsupported_file"
    assert "its pages are images" in failed.last_error.message
    assert "scan.pdf" not in failed.last_error.message  # it is kept longer than the upload
    with pytest.raises(BadRequestError, match="after names no file"):
        ids(after="file-none")

    chunked = [{"file_id": good[0], "chunking_strategy": static(100, 90)}]
    alone = client.vector_stores.file_batches.create(store, files=chunked)  # type: ignore[arg-type]
    assert (alone.status, alone.file_counts.failed) == ("failed", 1)
    made = client.vector_stores.create(name="partly", file_ids=[good[0], bad])
    assert (made.file_counts.completed, made.file_counts.failed, made.file_counts.total) == (1, 1, 2)
    with pytest.raises(BadRequestError) as caught:
        client.vector_stores.file_batches.create(store, file_ids=good, attributes={"acl": 1.0})
    assert caught.value.param == "attributes.acl"


UNREADABLE = {
    "image.png": (b"\x89PNG\xff\xfe\x00", "neither text in UTF-8"),
    "nul.txt": (b"a\0b", "neither text in UTF-8"),
    "blank.txt": (b" \n", "is empty"),
    "empty.txt": (b"", "is empty"),
    "latin.txt": ("größer".encode("latin-1"), "neither text in UTF-8"),
    "cut16.txt": ("größer".encode("utf-16")[:-1], "neither text in UTF-8"),
    "unmarked.txt": ("bat".encode("utf-16-le"), "neither text in UTF-8"),
    "broken.pdf": (b"%PDF-1.7 and no more \xff", "cannot be read as pdf"),
    "empty.xlsx": (b"", "is empty"),
    "cut.xlsx": (xlsx(A=[["a", "b"], [1, 2]])[:3000], "damaged or cut short"),
    "locked.pptx": (b"\xd0\xcf\x11\xe0" + bytes(600), "encrypted"),
}


def test_unreadable_files_do_not_end_an_upload_of_many(client: OpenAI) -> None:
    """Each is accepted, and is listed as failed with its id and the reason; the others of the batch are written."""
    store = client.vector_stores.create().id
    files = [("bats.txt", b"Bats listen."), *((name, content) for name, (content, _) in UNREADABLE.items())]
    batch = client.vector_stores.file_batches.upload_and_poll(store, files=files)
    counts = batch.file_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 1, len(UNREADABLE))
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store, filter="failed")
    errors = {client.files.retrieve(one.id).filename: one.last_error for one in listed}
    assert errors.keys() == UNREADABLE.keys()
    for name, (_, reason) in UNREADABLE.items():
        error = errors[name]
        assert error is not None
        assert error.code == "unsupported_file"
        assert reason in error.message
    for one in listed:
        with pytest.raises(BadRequestError, match="the file"):
            client.vector_stores.files.create(store, file_id=one.id)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_says_how_a_file_is_read(encoding: str) -> None:
    """The mark is no part of the text."""
    content = "größer".encode(encoding) if encoding == "utf-8-sig" else "\ufeffgrößer".encode(encoding)
    assert text_of(content, "a.txt") == "größer"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.xlsx", xlsx(S=[["id", "text", "acl"], ["1", "The kitchen is closed.", "kitchen"]])),
        ("intro.md", b"---\ntitle: Intro\nacl: [staff]\n---\nFor the staff."),
        ("open.md", b"+++\nacl = ['staff']\nFor the staff."),
    ],
)
def test_a_file_for_some_is_not_for_everybody(client: OpenAI, store: str, name: str, content: bytes) -> None:
    """What names an acl inside is refused, unless the attributes name one."""
    file = client.files.create(file=(name, content), purpose="assistants").id
    with pytest.raises(BadRequestError, match="names an acl"):
        client.vector_stores.files.create(store, file_id=file)
    assert client.vector_stores.files.create(store, file_id=file, attributes={"acl": "staff"}).id == file


def test_an_uploaded_workbook_keeps_its_columns(client: OpenAI, http: Http, store: str) -> None:
    """Its rows become lines of one document."""
    content = xlsx(S=[["id", "text", "lang"], ["1", "The kitchen is closed.", "en"]])
    file = client.files.create(file=("rows.xlsx", content), purpose="assistants").id
    client.vector_stores.files.create(store, file_id=file)
    text = http.ok("GET", f"/v1/collections/{store}/documents/{file}")["text"]
    assert "id: 1\ntext: The kitchen is closed.\nlang: en" in text


def test_the_latest_batches_are_kept(tmp_path: Path) -> None:
    """The oldest is forgotten for a new one."""
    collection = SimpleNamespace(folder=tmp_path)
    kept = [FileBatch(1, f"vsfb_{at:024x}", at, ["a"], {}) for at in range(file_batches.KEPT_MAX + 2)]
    for at, one in enumerate(kept):
        file_batches.save_batch(collection, one)  # type: ignore[arg-type]
        os.utime(tmp_path / file_batches.FOLDER / f"{one.id}.json", (at, at))
    left = {path.stem for path in (tmp_path / file_batches.FOLDER).iterdir()}
    assert left == {one.id for one in kept[2:]}


def test_passages_of_a_size(client: OpenAI, http: Http, store: str) -> None:
    """A static strategy bounds the passages; the answer says how much the model allowed."""
    text = " ".join(f"Sentence number {at} speaks of bats." for at in range(100)).encode()
    file = client.files.create(file=("bats.txt", text), purpose="assistants").id

    def passages(**options: Any) -> tuple[Any, int]:
        made = client.vector_stores.files.create(store, file_id=file, **options)
        number = http.ok("GET", f"/v1/collections/{store}/documents/{file}")["passages"]
        assert made.chunking_strategy is not None
        return made.chunking_strategy.to_dict(), number

    usual, many = passages()
    assert usual == static(200, 32)
    small, more = passages(chunking_strategy=static(100, 20))
    assert small == static(100, 20)
    large, fewer = passages(chunking_strategy=static(800, 400))
    assert large == static(254, 63)  # all that the model reads
    assert more > many > fewer > 1
    assert passages(chunking_strategy={"type": "auto"}) == (usual, many)


def test_text_of_documents_that_are_no_text(client: OpenAI, store: str) -> None:
    """PDF and DOCX files are found by what they say, and come back as the bytes that they were."""
    for name, content in (
        ("fees.pdf", pdf("Late payment costs forty euros.")),
        ("leave.docx", docx("Leave", "Parents get ten weeks of leave.")),
    ):
        made = client.vector_stores.files.upload_and_poll(vector_store_id=store, file=(name, content))
        assert made.status == "completed"
        assert client.files.content(made.id).read() == content
    (best, *_) = client.vector_stores.search(store, query="what does paying too late cost?")
    assert best.filename == "fees.pdf"
    (page,) = client.vector_stores.files.content(best.file_id, vector_store_id=store).data
    assert "# Page 1" in (page.text or "")
    broken = client.files.create(file=("broken.pdf", b"%PDF-1.7 and no more \xff"), purpose="assistants").id
    with pytest.raises(BadRequestError, match=r"broken\.pdf") as caught:
        client.vector_stores.files.create(store, file_id=broken)
    assert caught.value.param == "file"


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_much_work() -> None:
    """Is given up when it has taken more CPU than its size allows: two kilobytes may ask for minutes."""
    drawn = b"BT /F1 1 Tf " + b"1 0 Td (a) Tj " * 200_000 + b"ET"
    found = extraction.extract(pdf_of(zlib.compress(drawn, 9)), "dear.pdf", 1 << 20)
    assert found is not None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(InvalidInput, match="s of CPU"):
        found.run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 2 * extraction.CPU_S_MIN


BETWEEN_PARAGRAPHS = "</w:t></w:r></w:p><w:p><w:r><w:t>"


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx"])
def test_a_file_that_unpacks_to_much_text(client: OpenAI, store: str, name: str) -> None:
    """Is refused before it is embedded, which would take minutes for ten kilobytes; the limit is named."""
    rows = [("a" * 40, "b" * 40)] * 9000
    content = docx("Bomb", BETWEEN_PARAGRAPHS.join("a" * 95_000)) if name == "a.docx" else xlsx(S=rows)
    file = client.files.create(file=(name, content), purpose="assistants")
    with pytest.raises(APIStatusError, match=r"characters of text.*files\.text_factor_max") as caught:
        client.vector_stores.files.create(store, file_id=file.id)
    assert (caught.value.status_code, caught.value.param) == (400, "file_id")
    batch = client.vector_stores.file_batches.create(store, file_ids=[file.id])
    assert (batch.file_counts.failed, batch.file_counts.completed) == (1, 0)


def test_books_do_not_unpack_to_much_text() -> None:
    """A document of a thousand pages, and a workbook whose rows are much alike, are far from the limit."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(5000)]
    paragraphs = (" ".join(chance.choices(words, k=80)) for _ in range(5000))
    states = [("Order", "Region", "Status")] + [
        (at, chance.choice(["Europe", "Asia"]), chance.choice(["open", "delivered"])) for at in range(3000)
    ]
    for name, content in {
        "book.docx": docx("Book", BETWEEN_PARAGRAPHS.join(paragraphs)),
        "orders.xlsx": xlsx(Orders=states),
    }.items():
        texts = TextExtractor(extraction.extract)
        text = asyncio.run(texts.find(content, name, 1 << 24, FilesSection().text_factor_max // 2))
        assert len(text) > 60_000


def pdf_of(stream: bytes) -> bytes:
    """A page that is drawn by a deflated stream."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d/Filter/FlateDecode>>\nstream\n" % len(stream) + stream + b"\nendstream",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    written, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(written))
        written += b"%d 0 obj\n" % number + one + b"\nendobj\n"
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    ends = b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(written)
    return written + b"xref\n0 6\n0000000000 65535 f \n" + table + ends


def test_files_that_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where it is missing, with its name."""
    found = extraction.extract(b"", "A.PDF", 1000)
    assert found is not None
    monkeypatch.setattr(extraction, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"\.\[files\]"):
        found.run()
    assert extraction.extract(b"", "a.txt", 1000) is None


def test_a_caller_that_leaves_ends_the_extraction() -> None:
    """Its process is killed, also in native code; the next caller gets its turn."""

    async def story() -> str:
        texts = TextExtractor(stuck)
        for _ in range(AT_ONCE + 1):
            waiting = asyncio.create_task(texts.find(b"", "a.pdf", 1000, 16))
            await asyncio.to_thread(stuck.started.acquire)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        texts = TextExtractor(extraction.extract)
        return await texts.find(pdf("Still here."), "a.pdf", 1000, 16)

    class Stuck:
        """Extracts with a child that never answers."""

        def __init__(self) -> None:
            self.started = threading.Semaphore(0)

        def __call__(self, content: bytes, filename: str, bytes_max: int) -> Any:
            found = extraction.extract(pdf("x"), filename, bytes_max)
            assert found is not None
            connect = found._sandbox._connect

            def stopped() -> Any:
                connection = connect()
                child = found._sandbox._child
                assert child is not None
                os.kill(child.pid, signal.SIGSTOP)
                self.started.release()
                return connection

            found._sandbox._connect = stopped  # type: ignore[method-assign]
            return found

    stuck = Stuck()
    assert "Still here." in asyncio.run(story())


# --- expiry -------------------------------------------------------------------------------------------------------


def test_a_store_that_expires(client: OpenAI) -> None:
    """Says when; the expiry can be changed and taken away, and other changes leave it."""
    expires: Any = {"anchor": "last_active_at", "days": 7}
    made = client.vector_stores.create(name="short-lived", expires_after=expires)
    assert made.expires_after is not None
    assert made.expires_after.to_dict() == expires
    assert made.last_active_at is not None
    assert (made.status, made.expires_at) == ("completed", made.last_active_at + 7 * DAY_S)
    renamed = client.vector_stores.update(made.id, name="Other")
    assert renamed.expires_after == made.expires_after
    longer = client.vector_stores.update(made.id, expires_after={"anchor": "last_active_at", "days": 30})
    assert longer.expires_after is not None
    assert longer.expires_after.days == 30
    stays = client.vector_stores.update(made.id, expires_after=None)
    assert (stays.expires_after, stays.expires_at) == (None, None)


def test_times_outlive_rebuilds(client: OpenAI, http: Http) -> None:
    """When a store and its files were made, and when it was last used and expires, whatever rebuilds forget."""
    expires: Any = {"anchor": "last_active_at", "days": 7}
    made = client.vector_stores.create(name="rebuilt", expires_after=expires)
    for name in ("a.txt", "b.txt"):
        file = client.files.create(file=(name, name.encode()), purpose="assistants")
        client.vector_stores.files.create(made.id, file_id=file.id)
    before = client.vector_stores.retrieve(made.id)
    written = [one.created_at for one in client.vector_stores.files.list(made.id)]
    time.sleep(1.1)  # times are in seconds
    http.reindex(made.id)
    http.wait_for(http.ok("POST", f"/v1/collections/{made.id}/erase", {})["job"])
    after = client.vector_stores.retrieve(made.id)
    assert (after.created_at, after.last_active_at, after.expires_at) == (
        before.created_at,
        before.last_active_at,
        before.expires_at,
    )
    assert [one.created_at for one in client.vector_stores.files.list(made.id)] == [max(written)] * 2


def test_only_what_is_not_used_is_deleted(tmp_path: Path) -> None:
    """A store is deleted so many days after its last use, which outlives a restart; one without an expiry stays."""
    catalog = Catalog(tmp_path / "data", IndexOptions())
    settings = Settings(dimensions=4, fingerprint="f", model="m", hot_capacity=10)
    for name, days in (("used", 2), ("unused", 2), ("plain", None)):
        unused = VectorStoreSettings(expires_days=days, used_at=1_000_000)
        catalog.create(name, settings).vector_store.set(unused)
    processes = SearchProcesses((), 0, Config(), tmp_path)
    tasks = Tasks(lambda *_: None)
    app: Any = {
        CATALOG: catalog,
        USED: {},
        TASKS: tasks,
        METRICS: Metrics(),
        PROCESSES: processes,
        STORE: None,
    }
    look = partial(store_expiry.delete_expired, app)

    async def story() -> None:
        app[USED]["used"] = 1_000_000 + DAY_S
        await store_expiry.save_uses(app)  # as when a service ends
        app[USED].clear()
        await look(1_000_000 + DAY_S)
        assert (app[USED], sorted(catalog.collections)) == ({}, ["plain", "unused", "used"])
        await look(1_000_000 + 2 * DAY_S)
        assert sorted(catalog.collections) == ["plain", "used"]
        await look(1_000_000 + 3 * DAY_S)
        assert sorted(catalog.collections) == ["plain"]

    try:
        asyncio.run(story())
    finally:
        catalog.close()


def test_attributes_are_replaced(client: OpenAI, store: str, http: Http) -> None:
    """All of them, without embedding again."""
    file_id = next(one.id for one in client.vector_stores.files.list(store))
    changed = client.vector_stores.files.update(
        file_id, vector_store_id=store, attributes={"lang": "fr", "rank": 1.5}
    )
    assert changed.attributes == {"lang": "fr", "rank": 1.5}
    assert http.ok("GET", f"/v1/collections/{store}/documents/{file_id}")["metadata"] == changed.attributes


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("long.txt", b"x" * (16_777_216 + 1), "at most 16777216"),
        ("x" * 256, b"text", "1 to 255 printable characters"),
    ],
    ids=["long", "name"],
)
def test_files_that_are_refused(client: OpenAI, name: str, content: bytes, match: str) -> None:
    """At the upload, naming the field."""
    with pytest.raises(BadRequestError, match=match) as caught:
        client.files.create(file=(name, content), purpose="assistants")
    assert caught.value.param == "file"


def static(tokens: int, overlap: int) -> Any:
    return {
        "type": "static",
        "static": {"max_chunk_size_tokens": tokens, "chunk_overlap_tokens": overlap},
    }


def test_errors_name_the_field(client: OpenAI, store: str) -> None:
    """What we do not do is refused in OpenAI's shape, not left out silently."""
    (file, *_) = client.vector_stores.files.list(store)
    refused: list[tuple[str, Any]] = [
        ("max_num_results", lambda: client.vector_stores.search(store, query="x", max_num_results=51)),
        ("query", lambda: client.vector_stores.search(store, query=[])),
        (
            "ranking_options.score_threshold",
            lambda: client.vector_stores.search(store, query="x", ranking_options={"score_threshold": 2}),
        ),
        ("query[1]", lambda: client.vector_stores.search(store, query=["x", ""])),
        (
            "filters",
            lambda: client.vector_stores.search(store, query="x", filters={"type": "eq", "key": "nokey", "value": 1}),
        ),
        (
            "expires_after.days",
            lambda: client.vector_stores.create(expires_after={"anchor": "last_active_at", "days": 366}),
        ),
        (
            "chunking_strategy.static.max_chunk_size_tokens",
            lambda: client.vector_stores.files.create(store, file_id=file.id, chunking_strategy=static(99, 0)),
        ),
        (
            "chunking_strategy.static.chunk_overlap_tokens",
            lambda: client.vector_stores.files.create(store, file_id=file.id, chunking_strategy=static(100, 51)),
        ),
        ("attributes", lambda: client.vector_stores.files.create(
            store, file_id=file.id, attributes={str(at): at for at in range(513)}
        )),
        ("purpose", lambda: client.files.create(file=("a.txt", b"a"), purpose="batch")),
        (
            "expires_after.seconds",
            lambda: client.files.create(
                file=("a.txt", b"a"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 1}
            ),
        ),
    ]  # fmt: skip
    for param, call in refused:
        with pytest.raises(BadRequestError) as caught:
            call()
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"


MISSING = "file-" + 24 * "0"
AND_TRUE = {"type": "and", "filters": [{"type": "gt", "key": "year", "value": True}]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/{store}/search", {"query": "x", "filters": 5}, "filters"),
        ("/{store}/search", {"query": "x", "filters": AND_TRUE}, "filters.filters[0].value"),
        ("/{store}/search", {"query": "x", "filter": AND_TRUE}, "filter"),
        ("/{store}/search", {"query": ""}, "query"),
        ("/{store}/files", {"file_id": MISSING}, "file_id"),
        ("/{store}/files", {"file_id": "{file}", "attributes": {"a": 1, "b": None}}, "attributes.b"),
        ("/{store}/files/{file}", {"attributes": {"a": 1, "b": [1]}}, "attributes.b"),
        ("/{store}/files/" + MISSING, {"attributes": {}}, "file_id"),
        ("/{store}/file_batches", {"file_ids": ["{file}", MISSING]}, "file_ids[1]"),
        ("/{store}/file_batches", {"file_ids": ["{file}"], "attributes": {"a": {}}}, "attributes.a"),
        ("/{store}/file_batches", {"files": [{"file_id": "{file}"}, {"file_id": MISSING}]}, "files[1].file_id"),
        ("", {"file_ids": ["{file}", 1]}, "file_ids[1]"),
        ("", {"file_ids": ["{file}", MISSING]}, "file_ids[1]"),
        ("", {"metadata": {"a": "x", "b": 1}}, "metadata.b"),
        ("/{store}", {"metadata": {"a": "x", "b": 513 * "x"}}, "metadata.b"),
    ],
)  # fmt: skip
def test_faulty_requests_name_the_field(
    client: OpenAI, http: Http, store: str, path: str, body: object, param: str
) -> None:
    """The field as OpenAI names it, with the place in a list and the key, also in the message."""
    (file, *_) = client.vector_stores.files.list(store)
    raw = json.dumps(body).replace("{file}", file.id).encode()
    reply = http.call("POST", f"/v1/vector_stores{path.format(store=store, file=file.id)}", raw=raw)
    assert reply.status in (400, 404)
    error = reply.body["error"]
    assert error["param"] == param
    assert error["message"].startswith((param, "no file"))


@pytest.mark.parametrize(("method", "below"), [("GET", ""), ("GET", "/content"), ("DELETE", "")])
def test_a_file_that_the_store_lacks(http: Http, store: str, method: str, below: str) -> None:
    """It is the id of a file, not of a document."""
    reply = http.call(method, f"/v1/vector_stores/{store}/files/{MISSING}{below}")
    assert (reply.status, reply.body["error"]["param"]) == (404, "file_id")


def test_an_expiry_of_its_own(client: OpenAI) -> None:
    """A file says when it expires: after the time asked for, else after the days of the settings."""
    expires: Any = {"anchor": "created_at", "seconds": 7200}
    own = client.files.create(file=("a.txt", b"a"), purpose="user_data", expires_after=expires)
    assert own.expires_at == own.created_at + 7200
    usual = client.files.create(file=("a.txt", b"a"), purpose="user_data")
    assert usual.expires_at == usual.created_at + 30 * DAY_S


def test_the_asynchronous_client(service: ServerProcess, store: str) -> None:
    """It polls as the other does."""

    async def ask() -> str:
        async with AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
            file = await client.vector_stores.files.upload_and_poll(
                vector_store_id=store, file=("bats.txt", b"Bats listen.")
            )
            assert file.status == "completed"
            page = await client.vector_stores.search(store, query="which animals listen?")
            return page.data[0].filename

    assert asyncio.run(ask()) == "bats.txt"


# --- forms --------------------------------------------------------------------------------------------------------


def test_curl_uploads(service: ServerProcess, tmp_path: Path) -> None:
    """`curl -F` needs no header of its own."""
    (tmp_path / "a.md").write_bytes(REFUNDS)
    command = [
        "curl",
        "-sf",
        f"{service.url}/v1/files",
        "-F",
        "purpose=assistants",
        "-F",
        f"file=@{tmp_path}/a.md",
    ]
    assert b'"filename":"a.md"' in subprocess.run(command, capture_output=True, check=True).stdout


FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\nvalue\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("headers", "raw", "status"),
    [
        ({"Content-Type": FORM}, b"", 400),
        ({"Content-Type": FORM}, b"no form", 400),
        ({"Content-Type": "multipart/form-data"}, b"--x--", 400),
        ({"Content-Type": FORM}, PART % b"file", 400),
        ({"Content-Type": FORM}, PART % b"other", 400),
        ({"Content-Type": FORM}, PART % b'file"\r\nContent-Transfer-Encoding: "x', 400),
        ({"Content-Type": FORM}, PART % b'file"\r\nContent-Type: text/x; charset="x', 400),
        ({"Content-Type": FORM}, PART % b"\xff\xfe", 400),
        ({"Content-Type": FORM}, PART % b'file"; filename="\xff', 400),
        ({"Content-Type": FORM}, PART % b"file" + PART % b"file", 400),
        ({"Content-Type": FORM}, (PART % b"purpose").replace(b"value", b"\xff"), 400),
        ({"Content-Type": "application/json"}, b"{}", 400),
        ({"Content-Type": FORM, "Origin": "https://elsewhere.example"}, PART % b"file", 403),
        ({"Content-Type": FORM, "Sec-Fetch-Site": "cross-site"}, PART % b"file", 403),
    ],
    ids=range(14),
)  # fmt: skip
def test_forms_that_are_refused(http: Http, headers: dict[str, str], raw: bytes, status: int) -> None:
    """Broken forms are the client's error, and those of foreign pages nobody's, in OpenAI's shape."""
    reply = http.call("POST", "/v1/files", raw=raw, headers=headers)
    assert reply.status == status, reply
    assert set(reply.body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.slow
def test_a_file_that_is_deleted_while_it_is_attached(http: Http) -> None:
    """Leaves no document, whichever of the two ends first."""
    name = http.new_collection()
    text = " ".join(f"word{at} boat." for at in range(12_000)).encode()
    form = (PART % b'file"; filename="long.txt').replace(b"value", text)
    form = form.replace(b"--x--", (PART % b"purpose").replace(b"value", b"assistants"))
    file = http.call("POST", "/v1/files", raw=form, headers={"Content-Type": FORM}).body["id"]
    with ThreadPoolExecutor(1) as pool:
        path = f"/v1/vector_stores/{name}/files"
        attached = pool.submit(http.call, "POST", path, {"file_id": file})
        while not http.metric("nearline_requests_under_way", **{"class": "write"}):
            assert not attached.done()
            time.sleep(0.002)
        assert http.call("DELETE", f"/v1/files/{file}").status == 200
        assert attached.result().status == 404
    assert http.call("GET", f"/v1/collections/{name}/documents/{file}").status == 404


@pytest.mark.slow
def test_a_file_is_deleted_from_collections_that_are_renamed(http: Http) -> None:
    """Its document is gone under whichever name the collection has by then, and the deletion does not fail."""
    names = [http.new_collection(), f"{http.new_collection()}-other"]
    form = (PART % b'file"; filename="a.txt').replace(b"value", b"A boat.")
    form = form.replace(b"--x--", (PART % b"purpose").replace(b"value", b"assistants"))
    with ThreadPoolExecutor(1) as pool:
        for _ in range(12):
            file = http.call("POST", "/v1/files", raw=form, headers={"Content-Type": FORM}).body["id"]
            assert http.call("POST", f"/v1/vector_stores/{names[0]}/files", {"file_id": file}).status == 200
            renamed = pool.submit(http.call, "POST", f"/v1/collections/{names[0]}/rename", {"name": names[1]})
            assert http.call("DELETE", f"/v1/files/{file}").status == 200
            assert renamed.result().status == 200
            names.reverse()
            assert http.call("GET", f"/v1/collections/{names[0]}/documents/{file}").status == 404


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_a_form_begins_with_its_boundary(http: Http, service: ServerProcess) -> None:
    """Lines before it are refused, and not read one by one on the event loop."""
    before = cpu_s(service.pid)
    reply = http.call("POST", "/v1/files", raw=b"\r\n" * 4_000_000, headers={"Content-Type": FORM})
    assert (reply.status, "begin with its boundary" in reply.body["error"]["message"]) == (400, True)
    assert cpu_s(service.pid) - before < 1.0


def test_a_form_is_taken_nowhere_else(http: Http) -> None:
    """Elsewhere a form stays refused: a page can send one without asking."""
    name = http.new_collection()
    reply = http.call(
        "POST", f"/v1/vector_stores/{name}/files", raw=PART % b"file", headers={"Content-Type": FORM}
    )
    assert reply.status == 415


# --- what is kept -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_outlive_a_restart(tmp_path: Path, model_folder: Path) -> None:
    """Uploads, attached files, batches and names of stores are there again; the folder of uploads is the owner's alone.
    With a store its batches go."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(tmp_path / "data", environ) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        file = client.files.create(file=("refunds.md", REFUNDS), purpose="assistants")
        store = client.vector_stores.create(name="Support FAQ", file_ids=[file.id])
        batch = client.vector_stores.file_batches.create(store.id, file_ids=[file.id])
    assert stat.S_IMODE((tmp_path / "data" / FOLDER).stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "data" / FOLDER / file.id).stat().st_mode) == 0o600
    with serving(tmp_path / "data", environ) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        assert client.files.content(file.id).read() == REFUNDS
        again = client.vector_stores.retrieve(store.id)
        assert (again.name, again.file_counts.total) == ("Support FAQ", 1)
        assert again.created_at >= file.created_at
        assert client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id) == batch
        assert (tmp_path / "data" / store.id / file_batches.FOLDER).is_dir()
        client.vector_stores.delete(store.id)
        assert not (tmp_path / "data" / store.id).exists()


def test_uploads_expire_and_are_bounded(tmp_path: Path) -> None:
    """What has expired is not found, and then removed; what has no room is refused until something is removed."""
    now = 1_000_000.0
    uploads = Uploads(tmp_path, FilesSection(bytes_max=3 * BLOCK_BYTES, days=2), now=lambda: now)
    first = uploads.keep("a.txt", b"a", "assistants", 3600)
    second = uploads.keep("b.txt", b"b" * BLOCK_BYTES, "assistants")
    with pytest.raises(TooLarge, match=r"files\.bytes_max"):
        uploads.keep("c.txt", b"c", "assistants")
    assert [one.id for one in uploads.all()] == sorted([first.id, second.id])
    (tmp_path / FOLDER / f".{first.id}.draft").write_bytes(b"half")
    now += 3600
    with pytest.raises(NotFound):
        uploads.read(first.id)
    uploads.forget_old()
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [second.id]
    assert uploads.remove(second.id)
    assert not uploads.remove(second.id)
    assert uploads.read(uploads.keep("c.txt", b"c\nd\n", "assistants").id)[1] == b"c\nd\n"


def test_a_damaged_upload_is_not_read(tmp_path: Path) -> None:
    """One whose bytes were cut, changed or emptied is refused, and `verify` names it, but none that is whole."""
    Catalog(tmp_path, IndexOptions()).close()
    uploads = Uploads(tmp_path, FilesSection(), now=lambda: 0.0)
    content = b"All of it.\nAnd a second line."
    whole, *kept = [uploads.keep(f"{at}.txt", content, "assistants").id for at in range(4)]
    damages: list[Callable[[bytes], bytes]] = [
        lambda stored: stored[:-3],
        lambda stored: stored.replace(b"second", b"fourth"),
        lambda stored: b"",
    ]
    assert read_all(tmp_path) == (4, [])
    for name, damage in zip(kept, damages, strict=True):
        path = tmp_path / FOLDER / name
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises((Damaged, NotFound)):
            uploads.read(name)
    ended = nearline("verify", "--data", tmp_path, "--json")
    [found] = [check for check in json.loads(ended.stdout)["checks"] if check["name"] == "uploaded files"]
    assert (ended.returncode, found["ok"]) == (1, False)
    assert [name in found["detail"] for name in (whole, *kept)] == [False, True, True, True]


def test_each_upload_is_read_once_for_all_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of many takes no longer for the disk: 20,000 took a second each time. Their number is bounded."""
    opened: list[str] = []
    read = Uploads._read

    def noted(uploads: Uploads, name: str) -> Upload | None:
        opened.append(name)
        return read(uploads, name)

    settings = FilesSection(uploads_max=3)
    first = Uploads(tmp_path, settings, now=lambda: 0.0)
    ids = [first.keep(f"{at}.txt", b"a", "assistants").id for at in range(2)]
    monkeypatch.setattr(Uploads, "_read", noted)
    uploads = Uploads(tmp_path, settings, now=lambda: 0.0)
    for _ in range(3):
        assert [one.id for one in uploads.all()] == sorted(ids)
    assert sorted(opened) == sorted(ids)
    ids.append(uploads.keep("c.txt", b"c", "assistants").id)
    with pytest.raises(TooLarge, match=r"files\.uploads_max"):
        uploads.keep("d.txt", b"d", "assistants")
    assert uploads.remove(ids.pop(0))
    assert [one.id for one in uploads.all()] == sorted(ids)
    assert len(opened) == 3  # the removed one, to see whether the caller may


def test_a_tenant_leaves_room_for_uploads_of_others(tmp_path: Path) -> None:
    """It may have no more than is left, so that there is always room for a new tenant."""
    uploads = Uploads(tmp_path, FilesSection(uploads_max=8, bytes_max=40 * BLOCK_BYTES), now=lambda: 0.0)

    def fill(tenant: str, size: int = 1) -> int:
        token = PRINCIPAL.set(Principal(tenant=tenant))
        try:
            for at in itertools.count():
                try:
                    uploads.keep("a.txt", b"a" * size, "assistants")
                except TooLarge as error:
                    assert "delete some" in error.message  # noqa: PT017
                    return at
        finally:
            PRINCIPAL.reset(token)
        raise AssertionError

    assert [fill("acme"), fill("beta"), fill("gamma")] == [4, 2, 1]
    assert fill("") == 1  # who is of no tenant may have the rest
    for one in uploads.all():
        assert uploads.remove(one.id)
    assert [fill("acme", 10 * BLOCK_BYTES), fill("beta", 10 * BLOCK_BYTES)] == [2, 1]


@pytest.mark.parametrize("file_id", ["../LOCK", "file-", "file-" + "0" * 23 + "/", "", "file-" + "G" * 24])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, file_id: str) -> None:
    """Only an id that was made here becomes part of a path."""
    uploads = Uploads(tmp_path, FilesSection(), now=lambda: 0.0)
    with pytest.raises(NotFound):
        uploads.read(file_id)
    assert not uploads.remove(file_id)
