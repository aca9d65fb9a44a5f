"""Every file of a folder is ingested or named with a reason: all kinds of files, sound and in every broken state."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.serving.process import ServerProcess
from jobs.sources.files import FORMATS
from nearline import Client
from tests.support.commands import nearline
from tests.support.files import docx, eml, epub, pdf, pptx, xlsx
from tests.support.http import Http

pytestmark = pytest.mark.model


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["A row."]}), sink)
    return bytes(sink.getvalue())


def arrow() -> bytes:
    sink, table = pa.BufferOutputStream(), pa.table({"text": ["A row."]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


# By format. Rows have the file's name as their id.
SOUND: dict[str, bytes] = {
    "jsonl": b'{"id": "{}", "text": "A line."}\n',
    "json": b'{"id": "{}", "text": "An object."}',
    "csv": b"id,text\n{},A row.\n",
    "tsv": b"id\ttext\n{}\tA row.\n",
    "markdown": b"# A heading\n\nText.\n",
    "rst": b"Title\n=====\n\nText.\n",
    "text": b"Text.\n",
    "code": b"call me\n",
    "html": b"<h1>Page</h1><p>Text.",
    "pdf": pdf("A page."),
    "docx": docx("Heading", "Text."),
    "pptx": pptx(("Slide", "Text.")),
    "xlsx": xlsx(Sheet=[["a", "b"], [1, 2]]),
    "epub": epub("Book", ("One", "Text.")),
    "mail": eml("Text."),
    "mailbox": b"From a\nSubject: A\n\nText.\n",
    "parquet": parquet(),
    "arrow": arrow(),
}
STATES: dict[str, Any] = {
    "empty": lambda content: b"",
    "blank": lambda content: b" \r\n\t\n",
    "binary": lambda content: bytes(range(256)) * 8,
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(1000),
    "latin": lambda content: content + b"caf\xe9",
    "utf16": lambda content: b"\xff\xfe" + content.decode("latin-1").encode("utf-16-le"),
}
SPECIAL: dict[str, bytes] = {
    "header.csv": b"id,text\n",
    "other.csv": b"name,price\nLamp,5\n",
    "wide.csv": f"id,text,{','.join(map(str, range(599)))}\n1,x{',1' * 599}\n".encode(),
    "list.json": b"[]",
    "broken.md": b"---\ntitle: a: b\n---\nText.",
    "nul.jsonl": b'{"id": "a", "text": "\\u0000"}\n',
    "nested.md": b"---\na: [[[x]]]\n---\nText.",
    "scan.pdf": pdf(""),
    "menu.html": b"<nav>Only a menu</nav>",
    "script.min.js": b"x",
    "long.js": b"x=1;" * 1000,
    "package-lock.json": b"{}",
    "book/search_index.json": b"{}",
    "node_modules/a/index.js": b"x",
    ".hidden": b"x",
    ".folder/a.txt": b"x",
    "ignored.txt": b"x",
    "excluded.txt": b"x",
    "picture.png": b"x",
    "Makefile": b"x",
    "README": b"Text.",
    "attached.eml": eml("Text.", ("pic.png", b"x"), ("bad.pdf", b"x")),
}


def files() -> Iterator[tuple[str, bytes]]:
    for ending, kind in FORMATS.items():
        yield f"sound{ending}", SOUND[kind].replace(b"{}", b"sound" + ending.encode())
        yield (
            f"packed{ending}.gz",
            gzip.compress(SOUND[kind].replace(b"{}", b"packed" + ending.encode() + b".gz")),
        )
    for kind, content in SOUND.items():
        ending = next(ending for ending, one in FORMATS.items() if one == kind)
        for state, change in STATES.items():
            yield f"{state}{ending}", change(content.replace(b"{}", f"{state}{ending}".encode()))
        yield f"cut{ending}.gz", gzip.compress(content)[:-6]
    yield from SPECIAL.items()


FILES = dict(files())


@dataclass(frozen=True)
class Run:
    folder: Path
    ids: list[str]
    value: dict[str, Any]


@pytest.fixture(scope="module", params=["once", "--sync"])
def run(
    request: pytest.FixtureRequest, service: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    folder = tmp_path_factory.mktemp("all")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    (folder / ".gitignore").write_text("ignored.txt\n")
    (folder / "link.txt").symlink_to("/dev/null")
    os.mkfifo(folder / "pipe.txt")
    name = Http(service.url).new_collection()
    arguments = ["ingest", folder, "--url", service.url, "-c", name, "--json", "--exclude", "excluded.txt"]
    if request.param == "--sync":
        arguments += ["--sync", "--yes", "--state", tmp_path_factory.mktemp("state")]
    ended = nearline(*arguments)
    assert ended.returncode == 1, ended.stderr
    with Client(service.url) as client:
        ids = [one["id"] for one in client.scroll(name, text=False)]
    return Run(folder, ids, json.loads(ended.stdout))


def is_ingested(run: Run, name: str) -> bool:
    starts = (name, f"{run.folder.name}/{name}")
    longer = tuple(f"{start}{mark}" for start in starts for mark in "#/")
    return any(one in starts or one.startswith(longer) for one in run.ids)


def reasons(run: Run, name: str) -> list[str]:
    path = str(run.folder / name)
    return [
        one["reason"]
        for one in run.value["failed"] + run.value["skipped"]
        if one["source"] == path
        or path.startswith(one["source"] + "/")
        or one["source"].startswith(path + ":")
    ]


@pytest.mark.parametrize("kind", [*SOUND, ""], ids=lambda kind: kind or "special")
def test_every_file_is_ingested_or_named(run: Run, kind: str) -> None:
    """In the summary, with a reason in words."""
    others = [*SPECIAL, "link.txt", "pipe.txt", ".gitignore"]
    for name in [name for name in FILES if kind_of(name) == kind and name not in SPECIAL] if kind else others:
        found = reasons(run, name)
        assert is_ingested(run, name) or found, name
        assert all(found), name


def kind_of(name: str) -> str:
    return FORMATS[Path(name.removesuffix(".gz")).suffix] if name not in SPECIAL else ""


def test_every_sound_file_is_ingested(run: Run) -> None:
    """Try each ending that is known, packed or not: Parquet is packed by itself, and Arrow is not read in order."""
    sound = [name for name in FILES if name.startswith(("sound", "packed"))]
    assert [name for name in sound if not is_ingested(run, name)] == [
        f"packed.{ending}.gz" for ending in ("parquet", "arrow", "arrows", "feather")
    ]


def test_the_counts_agree_with_the_names(run: Run) -> None:
    """The summary's numbers are those of what it names."""
    assert run.value["failures"] == len(run.value["failed"])
    assert sum(run.value["skips"].values()) == len(run.value["skipped"])
    assert run.value["documents"] + run.value["unchanged"] == len(run.ids)
