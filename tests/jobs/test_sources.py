"""Reading files for ingestion: real files, with what real files have in them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexes.base.errors import InvalidInput
from jobs.sources import (
    SourceDocument,
    SourceError,
    SourceOptions,
    SourceReport,
    parse_types,
    read_documents,
    total_bytes,
)
from jobs.sources.files import ENCODING_HINT
from jobs.sources.model import EMPTY, NOTES_KEPT_MAX


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(*paths: Path, options: SourceOptions | None = None) -> tuple[list[SourceDocument], SourceReport]:
    report = SourceReport()
    return list(read_documents(paths, options=options, report=report)), report


def refusal(*paths: Path, options: SourceOptions | None = None) -> str:
    """What the first failure says where no report takes it down."""
    with pytest.raises(SourceError) as caught:
        list(read_documents(paths, options=options))
    assert "\n" not in caught.value.message
    return caught.value.message


# -- JSON Lines


def test_jsonl_with_bom_crlf_and_blank_lines(tmp_path: Path) -> None:
    """A byte order mark, Windows line ends and blank lines are no part of the data."""
    path = put(
        tmp_path,
        "a.jsonl",
        b'\xef\xbb\xbf{"id": "1", "text": "one", "title": "One"}\r\n\r\n   \n'
        b'{"id": 2, "text": "zwei \\u00fc"}\r\n',
    )
    documents, report = read(path)
    assert [(d.id, d.text, d.title) for d in documents] == [("1", "one", "One"), ("2", "zwei ü", None)]
    assert [d.source for d in documents] == [f"{path}:1", f"{path}:4"]
    assert (report.files, report.documents, report.skips["empty"]) == (1, 2, 0)


def test_jsonl_metadata(tmp_path: Path) -> None:
    """Other fields become metadata under the object `metadata`, as JSON has them; a vector is none."""
    row = {
        "id": "1",
        "text": "t",
        "year": 2021,
        "lang": "de",
        "tags": ["a", "b"],
        "ok": True,
        "none": None,
        "nested": {"x": 1},
        "numbers": [1, 2],
        "vector": [0.6, 0.8],
        "metadata": {"lang": "en", "score": 0.5, "gone": None},
    }
    path = put(tmp_path, "a.jsonl", json.dumps(row))
    assert read(path)[0][0].metadata == {
        "year": 2021, "lang": "en", "tags": ["a", "b"], "ok": True, "none": None, "nested": {"x": 1},
        "numbers": [1, 2], "score": 0.5, "gone": None,
    }  # fmt: skip


def test_jsonl_of_a_beir_collection_and_renamed_fields(tmp_path: Path) -> None:
    """`_id` is taken where `id` is absent, and every field can be named."""
    beir = put(tmp_path, "corpus.jsonl", '{"_id": "d1", "title": "", "text": "x", "metadata": {}}\n')
    assert read(beir)[0] == [
        SourceDocument(id="d1", text="x", source=f"{beir}:1", bytes_read=beir.stat().st_size)
    ]
    other = put(tmp_path, "other.jsonl", '{"key": "k", "body": "b", "head": "h"}\n')
    options = SourceOptions(id_field="key", text_fields=("body",), title_field="head")
    (document,), _ = read(other, options=options)
    assert (document.id, document.text, document.title, document.metadata) == ("k", "b", "h", {})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "1", "text": x}', ":2:21: not JSON: invalid character"),
        ('{"id": "ü", "text": x}', ":2:21: not JSON: invalid character"),
        ('{"id": "1", "text": "x"', ":2:24: not JSON: Input data was truncated"),
        ('{"id": "1", "text": "\\ud800', "not JSON: Input data was truncated"),
        ('{"id": "1", "text": "\\ud800"}', "not JSON: unexpected end of escaped utf-16 surrogate pair"),
        ('{"id": "1", "text": NaN}', ":2:21: not JSON"),
        ('["1", "x"]', ":2: expected a JSON object"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ('{"id": "1", "body": "x"}', ":2: no field 'text'; found: id, body"),
        ('{"id": "1", "text": 5}', ":2: field 'text': expected a string, found a number"),
        ('{"id": "1", "text": "x", "title": []}', ":2: field 'title': expected a string, found a list"),
        ('{"id": "", "text": "x"}', ":2: no id: field 'id' is empty"),
        ('{"id": null, "text": "x"}', ":2: no id: field 'id' is empty"),
        ('{"id": true, "text": "x"}', ":2: field 'id': expected a string or an integer, found a boolean"),
        ('{"id": ["1"], "text": "x"}', ":2: field 'id': expected a string or an integer, found a list"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    """A bad line fails with file, line and column, and its neighbours survive."""
    good = '{"id": "good%d", "text": "x"}\n'
    path = put(tmp_path, "a.jsonl", good % 1 + line + "\n" + good % 2)
    message = refusal(path)
    assert message.startswith(str(path))
    assert says in message
    documents, report = read(path)
    assert [d.id for d in documents] == ["good1", "good2"]
    (failed,) = report.failed
    assert says in f"{failed.source}: {failed.reason}"


def test_a_line_that_is_not_utf8(tmp_path: Path) -> None:
    """The refusal gives the line and the column of the byte at fault."""
    path = put(tmp_path, "a.jsonl", b'{"id": "1", "text": "x"}\n{"id": "2", "text": "caf\xe9"}\n')
    assert (
        refusal(path)
        == f"{path}:2:25: not UTF-8 text (found byte 0xe9); --encoding says which it is, such as cp1252"
    )
    assert [d.id for d in read(path)[0]] == ["1"]


def test_a_title_is_a_document(tmp_path: Path) -> None:
    """Rows and front matter with a title and an empty text are kept; a row without a field for the text is an error."""
    rows = [{"id": "1", "title": "Moby Dick", "text": ""}, {"id": "2", "title": "Emma", "text": None}]
    path = put(tmp_path, "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    table = put(tmp_path, "b.csv", "id,title,text\n3,Ulysses,\n4, ,\n")
    page = put(tmp_path, "c.md", "---\ntitle: Persuasion\n---\n")
    documents, report = read(path, table, page)
    assert [(one.title, one.text) for one in documents] == [
        ("Moby Dick", ""), ("Emma", ""), ("Ulysses", ""), ("Persuasion", "")
    ]  # fmt: skip
    assert report.skips["empty"] == 1
    assert "no field 'text'" in refusal(put(tmp_path, "d.jsonl", '{"id": "5", "title": "Walden"}'))


def test_rows_without_text_are_skipped_and_counted(tmp_path: Path) -> None:
    """Empty, blank and null texts are no documents, and no errors either."""
    rows = [{"id": str(n), "text": text} for n, text in enumerate(["", "  \n\t", None, "x"])]
    path = put(tmp_path, "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    documents, report = read(path)
    assert [d.id for d in documents] == ["3"]
    assert report.skips["empty"] == 3
    assert report.summary()[1] == "skipped: 3 empty (a.jsonl:1, a.jsonl:2, a.jsonl:3)"


def test_a_huge_line_is_passed_over_without_being_held(tmp_path: Path) -> None:
    """A line over the limit fails with its number, the next one is read, and memory never grew with it."""
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as out:
        out.write(b'{"id": "1", "text": "x"}\n{"id": "2", "text": "')
        for _ in range(40):
            out.write(b"x" * 1_000_000)
        out.write(b'"}\n{"id": "3", "text": "x"}\n')
    options = SourceOptions(document_bytes_max=1_000_000)
    tracemalloc.start()
    try:
        documents, report = read(path, options=options)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert [d.id for d in documents] == ["1", "3"]
    assert [one.source for one in report.failed] == [f"{path}:2"]
    assert "a line longer than the 1,000,000 bytes" in report.failed[0].reason


def test_a_large_line_within_the_limit_is_read(tmp_path: Path) -> None:
    """A text of megabytes is one document."""
    path = put(tmp_path, "a.jsonl", json.dumps({"id": "1", "text": "word " * 500_000}))
    assert len(read(path)[0][0].text) == 2_500_000


# -- compressed


def test_gzip_is_read_and_progress_counts_bytes_on_disk(tmp_path: Path) -> None:
    """Compressed files count as they lie on disk: progress ends at total_bytes, and never falls."""
    lines = "".join(json.dumps({"id": str(n), "text": f"text {n}"}) + "\n" for n in range(5000))
    zipped = put(tmp_path, "in/a.jsonl.gz", gzip.compress(lines.encode()))
    put(tmp_path, "in/b.txt", "plain")
    documents, report = read(tmp_path / "in")
    assert (report.documents, report.files) == (5001, 2)
    progress = [d.bytes_read for d in documents]
    assert progress == sorted(progress)
    assert progress[-1] == total_bytes([tmp_path / "in"]) == zipped.stat().st_size + 5


def test_a_damaged_gzip_is_named(tmp_path: Path) -> None:
    """A file cut short, and one that is no gzip at all, raise with their path."""
    whole = gzip.compress(os.urandom(1000) + b"\n")
    assert "damaged or cut short" in refusal(put(tmp_path, "cut.txt.gz", whole[:-20]))
    assert "damaged or cut short" in refusal(put(tmp_path, "not.jsonl.gz", b"plain text\n"))


# -- CSV and TSV


def test_csv_with_quotes_newlines_and_bom(tmp_path: Path) -> None:
    """Quoted delimiters, quotes and newlines belong to the cell; lines are counted through them."""
    path = put(
        tmp_path,
        "faq.csv",
        b"\xef\xbb\xbfid,title,text,lang,year\r\n"
        b'1,"Hello, ""you""","first line\r\nsecond, line",en,2021\r\n'
        b"\r\n"
        b"2,,plain,,\r\n"
        b"3,,  ,en,2020\r\n",
    )
    documents, report = read(path)
    assert [(d.id, d.title, d.text) for d in documents] == [
        ("1", 'Hello, "you"', "first line\r\nsecond, line"),
        ("2", None, "plain"),
    ]
    assert [d.metadata for d in documents] == [{"lang": "en", "year": 2021}, {}]
    assert [d.source for d in documents] == [f"{path}:2", f"{path}:5"]
    assert report.skips["empty"] == 1


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_by_the_text_column(tmp_path: Path, delimiter: str) -> None:
    """Texts full of other delimiters do not mislead: the header decides."""
    header = delimiter.join(["id", "text", "note"])
    row = delimiter.join(["1", '"a, b; c | d, e, f"', "n"])
    documents, _ = read(put(tmp_path, "a.csv", f"{header}\n{row}\n"))
    assert (documents[0].text, documents[0].metadata) == ("a, b; c | d, e, f", {"note": "n"})


def test_a_table_with_carriage_returns_alone(tmp_path: Path) -> None:
    """It fails by itself, and the next file is read."""
    put(tmp_path, "a.csv", "id,text\r1,mac\r2,mac2\r")
    put(tmp_path, "b.csv", "id,text\n3,unix\n")
    documents, report = read(tmp_path)
    assert [one.id for one in documents] == ["3"]
    assert "save the file with line feeds" in report.failed[0].reason


def test_rows_of_different_files_with_the_same_ids(tmp_path: Path) -> None:
    """With `prefix_ids` they are different documents; a vector in a row is not used, and that is said once."""
    put(
        tmp_path,
        "in/a.jsonl",
        '{"id": 1, "text": "x", "vector": [1.0]}\n{"id": 2, "text": "y", "vector": [2.0]}\n',
    )
    put(tmp_path, "in/b.csv", "id,text\n1,z\n")
    documents, report = read(tmp_path / "in", options=SourceOptions(prefix_ids=True))
    assert [one.id for one in documents] == ["in/a.jsonl/1", "in/a.jsonl/2", "in/b.csv/1"]
    assert report.duplicates == 0
    assert sum("'vector' is not used" in note for note in report.notes) == 1


def test_columns_can_be_named(tmp_path: Path) -> None:
    """Named columns fill the document; several text columns are its paragraphs."""
    path = put(tmp_path, "a.csv", "sku,question,answer,zip\n7,Lamp?,Yes.,00123\n8,,Desk.,1\n")
    options = SourceOptions(id_field="sku", text_fields=("question", "answer"))
    documents, _ = read(path, options=options)
    assert [(d.id, d.text, d.metadata) for d in documents] == [
        ("7", "Lamp?\n\nYes.", {"zip": "00123"}),
        ("8", "Desk.", {"zip": "1"}),
    ]


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["12.50", "-3", "", "0"], "number", [12.5, -3, None, 0]),
        (["true", "FALSE", ""], "boolean", [True, False, None]),
        (["2026-01-05", "2026-01-05T10:00:00+02:00", "2026-01-05 10:00"], "date", None),
        (["2026-02-30", "2026-01-05"], "string", None),
        (["20260105", "2026-W01-1"], "string", None),
        (["01234", "80331"], "string", None),
        (["4006381333931123", "1"], "string", None),
        (["+4989123456", "1"], "string", None),
        (["1,5", "2"], "string", None),
        (["1e5", "2"], "string", None),
        (["nan", "2"], "string", None),
        (["٣", "2"], "string", None),
        (["yes", "no"], "string", None),
    ],
)
def test_types_are_inferred(tmp_path: Path, cells: list[str], kind: str, values: list[object] | None) -> None:
    """A column is what all its filled cells are, where nothing is lost by it; all else stays as written."""
    rows = "".join(f'{at},x,"{cell}"\n' for at, cell in enumerate(cells))
    documents, report = read(put(tmp_path, "a.csv", "id,text,column\n" + rows))
    assert report.types == {"column": [kind]}
    assert [d.metadata.get("column") for d in documents] == (values or cells)


def test_a_later_cell_that_does_not_fit_stays_a_string(tmp_path: Path) -> None:
    """The first 1,000 rows decide; later misfits are counted, and the first is noted with its line."""
    cells = ["7"] * 1000 + ["n/a", "08", "9"]
    path = put(tmp_path, "a.csv", "id,text,n\n" + "".join(f"{at},x,{one}\n" for at, one in enumerate(cells)))
    documents, report = read(path)
    assert [d.metadata["n"] for d in documents[-4:]] == [7, "n/a", "08", 9]
    assert report.misfits == {"n": 2}
    assert report.notes == [f"{path}:1002: column 'n': 'n/a' is no number; such cells stay strings"]
    assert "types: n number (2 cells are not, and stay strings)" in report.summary()


def test_types_can_be_declared(tmp_path: Path) -> None:
    """A declared type takes the place of an inferred one, reads more, and dates of a format become ISO."""
    path = put(
        tmp_path,
        "a.csv",
        "id,text,zip,price,published,seen,sold\n"
        '1,x,80331,1e3,31/12/2025,"Jan 5, 2026 10:30",yes\n'
        '2,x,1234,"1,5",2025-12-31,,0\n',
    )
    types = parse_types(
        "zip=string,price=number,published=date:%d/%m/%Y,seen=date:%b %d, %Y %H:%M,sold=boolean"
    )
    documents, report = read(path, options=SourceOptions(types=types))
    assert [d.metadata for d in documents] == [
        {
            "zip": "80331",
            "price": 1000.0,
            "published": "2025-12-31",
            "seen": "2026-01-05T10:30:00",
            "sold": True,
        },
        {"zip": "1234", "price": "1,5", "published": "2025-12-31", "sold": False},
    ]
    assert report.misfits == {"price": 1, "published": 1}
    assert report.summary()[1].startswith(
        "types: price number (1 cells are not, and stay strings), published date"
    )


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("price", "expected COLUMN=TYPE"),
        ("price=money", "number, boolean, date"),
        ("=number", "expected COLUMN=TYPE"),
        ("price=number:%d", "expected COLUMN=TYPE"),
        ("day=date:%d.%Q", "'Q' is a bad directive"),
    ],
)
def test_types_that_cannot_be_declared(declared: str, says: str) -> None:
    """A slip in `--types` is refused before anything is read."""
    with pytest.raises(InvalidInput, match="types: ") as caught:
        parse_types(declared)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b"2,x,y,z", ":3: expected 2 cells as in the header, found 4"),
        (b"2", ":3: expected 2 cells as in the header, found 1"),
        (b'2,"x" y', ":3: not a row of a table"),
        (b"2,caf\xe9", ":3: not UTF-8 text"),
        (b",x", ":3: no id: field 'id' is empty"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: bytes, says: str) -> None:
    """A bad row fails with file and line, and its neighbours survive."""
    path = put(tmp_path, "a.csv", b"id,text\n1,x\n" + row + b"\n3,x\n")
    assert f"{path}{says}" in refusal(path)
    documents, report = read(path)
    assert [d.id for d in documents] == ["1", "3"]
    assert report.failures == 1


def test_a_quote_that_is_never_closed_is_refused_at_its_row(tmp_path: Path) -> None:
    """It must not swallow the rest of the file as one document."""
    path = put(tmp_path, "a.csv", 'id,text\n1,x\n2,"open\n3,x\n4,x\n')
    message = refusal(path)
    assert message.startswith(f"{path}:3: not a row of a table")
    assert message.endswith("; nothing up to line 5 was read")


def test_a_cell_longer_than_the_csv_modules_own_limit(tmp_path: Path) -> None:
    """128 KiB is that module's limit, not ours."""
    path = put(tmp_path, "a.csv", f"id,text\n1,{'x' * 300_000}\n")
    assert len(read(path)[0][0].text) == 300_000


def test_headers_that_cannot_work_are_refused(tmp_path: Path) -> None:
    """Without a column that is needed, or with one named twice, nothing is read; the message has the columns."""
    message = refusal(put(tmp_path, "a.csv", "id;body;when, roughly\n1;x;now\n"))
    assert message.endswith(
        "no column 'text'; the columns are id, body, when, roughly; --text-field says which holds the text, "
        "--text-field '*' that all do"
    )
    named = SourceOptions(id_field="sku")
    message = refusal(put(tmp_path, "c.csv", "id,text\n1,x\n"), options=named)
    assert message.endswith("no column 'sku'; the columns are id, text; --id-field says which holds the id")
    assert "names a column twice: id" in refusal(put(tmp_path, "b.csv", "id,text,id\n1,x,2\n"))


def test_a_table_in_another_encoding_fails_clearly(tmp_path: Path) -> None:
    """A header that is not UTF-8 is one failure of the file."""
    path = put(tmp_path, "a.csv", "id,text,größe\n1,x,7\n".encode("latin-1"))
    assert refusal(path).startswith(f"{path}:1: not UTF-8 text; --encoding says which it is")


def test_rows_without_ids_are_numbered(tmp_path: Path) -> None:
    """Where there is no id column, rows get file and line, and a note says so once."""
    table = put(tmp_path, "a.csv", "text\nfirst\nsecond\n")
    lines = put(tmp_path, "b.jsonl", '{"text": "first"}\n{"text": "second"}\n')
    documents, report = read(table, lines)
    assert [d.id for d in documents] == ["a.csv#2", "a.csv#3", "b.jsonl#1", "b.jsonl#2"]
    assert [note.split(", so")[0] for note in report.notes] == [
        f"{table}:2: no field 'id'",
        f"{lines}:1: no field 'id'",
    ]


def test_an_id_that_is_named_must_be_there(tmp_path: Path) -> None:
    """Rows are not numbered where somebody said which field holds the id."""
    path = put(tmp_path, "b.jsonl", '{"id": "1", "text": "x"}\n')
    assert "no id: field 'sku' is missing" in refusal(path, options=SourceOptions(id_field="sku"))


# -- text and Markdown


def test_text_files(tmp_path: Path) -> None:
    """The id is the path below the given folder, and so is the title; line ends become plain."""
    put(tmp_path, "in/sub/b.txt", b"\xef\xbb\xbftwo\r\nlines\r")
    put(tmp_path, "in/a.rst", "one")
    put(tmp_path, "in/c.txt", " \n")
    documents, report = read(tmp_path / "in")
    assert [(d.id, d.title, d.text) for d in documents] == [
        ("in/a.rst", "in/a.rst", "one"),
        ("in/sub/b.txt", "in/sub/b.txt", "two\nlines\n"),
    ]
    assert report.skips["empty"] == 1


def test_a_text_file_that_is_not_utf8(tmp_path: Path) -> None:
    """It fails with line and column, and the next file is read."""
    bad = put(tmp_path, "a.txt", b"fine\nfa\xe7ade")
    put(tmp_path, "b.txt", "good")
    assert (
        refusal(tmp_path)
        == f"{bad}:2:3: not UTF-8 text (found byte 0xe7); --encoding says which it is, such as cp1252"
    )
    documents, report = read(tmp_path)
    assert [d.id for d in documents] == [f"{tmp_path.name}/b.txt"]
    assert [(one.source, one.reason) for one in report.failed] == [
        (f"{bad}:2:3", f"not UTF-8 text (found byte 0xe7); {ENCODING_HINT}")
    ]


def test_a_text_file_over_the_limit(tmp_path: Path) -> None:
    """It is refused as too large."""
    path = put(tmp_path, "a.txt", "x" * 1001)
    assert "1,000 bytes" in refusal(path, options=SourceOptions(document_bytes_max=1000))


def test_markdown_front_matter_and_heading(tmp_path: Path) -> None:
    """Front matter becomes metadata, nested values included, and leaves the text; all the rest of the text stays."""
    path = put(
        tmp_path,
        "a.md",
        "---\r\nlang: en\r\nweight: 10\r\ndraft: false\r\nquoted: '10'\r\nratio: 0.5\r\n"
        "date: 2021-02-03\r\n"
        'zip: 00123\r\ntags: [one, "two"]\r\nempty:\r\nnested:\r\n  key: value\r\nlist:\r\n  - item\r\n---\r\n'
        "```sh\r\n# a comment, no heading\r\n```\r\n\r\n## The *title* ##\r\n\r\nText.\r\n",
    )
    (document,), _ = read(path)
    assert document.metadata == {
        "lang": "en", "weight": 10, "draft": False, "quoted": "10", "ratio": 0.5, "date": "2021-02-03",
        "zip": "00123", "tags": ["one", "two"], "nested": {"key": "value"}, "list": ["item"],
    }  # fmt: skip
    assert document.title == "The *title*"
    assert document.text.startswith("```sh\n# a comment")
    assert document.text.endswith("\n\nText.\n")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: From the front matter\n---\n# Heading\n", "From the front matter"),
        ("Underlined\n==========\n\ntext", "Underlined"),
        ("- item\n---\ntext\n\n# Later\n", "Later"),
        ("no heading at all, #hashtag\n", "a.md"),
        ("~~~\n# inside\n~~~\n", "a.md"),
    ],
)
def test_markdown_titles(tmp_path: Path, text: str, title: str) -> None:
    """Front matter first, then the first real heading, then the file's name."""
    (document,), _ = read(put(tmp_path, "a.md", text))
    assert document.title == title


@pytest.mark.parametrize("text", ["---\nkey: never closed\n", "---\n\nA rule above.\n\n---\nand below\n"])
def test_what_only_looks_like_front_matter_stays_text(tmp_path: Path, text: str) -> None:
    """A rule at the top of a page is no front matter."""
    (document,), _ = read(put(tmp_path, "a.md", text))
    assert (document.text, document.metadata) == (text, {})


# -- folders


def test_folders_are_read_in_order_without_hidden_and_unknown_files(tmp_path: Path) -> None:
    """Names decide the order; hidden entries are named, files of other kinds counted by their endings."""
    for name in [
        "b.txt",
        "a/z.txt",
        "a/B.TXT",
        "c.md",
        ".hidden.txt",
        "~$plan.docx",
        ".git/config.txt",
        "pic.png",
        "Makefile",
    ]:
        put(tmp_path, name, "text")
    documents, report = read(tmp_path)
    names = ["a/B.TXT", "a/z.txt", "b.txt", "c.md"]
    assert [d.id for d in documents] == [f"{tmp_path.name}/{name}" for name in names]
    assert report.other_files == {".png": 1, "without an ending": 1}
    assert report.summary()[1:] == [
        "skipped: 3 hidden (.git, .hidden.txt, ~$plan.docx)",
        "skipped: 2 files of other kinds (1 without an ending, 1 .png)",
    ]


def test_files_that_are_text_by_custom(tmp_path: Path) -> None:
    """README, copyright and their like are read without an ending, also as Debian names and packs them."""
    for name in ["README", "copyright", "NEWS.Debian", "Makefile", "changelog.log", "LICENSE-MIT.bin"]:
        put(tmp_path, name, "text")
    put(tmp_path, "changelog.Debian.amd64.gz", gzip.compress(b"packed"))
    documents, report = read(tmp_path)
    names = ["NEWS.Debian", "README", "changelog.Debian.amd64.gz", "copyright"]
    assert [d.id for d in documents] == [f"{tmp_path.name}/{name}" for name in names]
    assert report.other_files.total() == 3


def test_what_is_excluded(tmp_path: Path) -> None:
    """Patterns match a name or a path below the folder; what they exclude is counted once and not entered."""
    for name in ["a.txt", "a.log.txt", "drafts/b.txt", "old/c.txt", "sub/old/d.txt", "sub/e.txt"]:
        put(tmp_path, name, "text")
    documents, report = read(tmp_path, options=SourceOptions(exclude=("*.log.txt", "drafts/", "sub/old")))
    assert [d.id.split("/", 1)[1] for d in documents] == ["a.txt", "old/c.txt", "sub/e.txt"]
    assert report.skips["excluded"] == 3


def test_a_folder_that_cannot_be_listed_fails_by_itself(tmp_path: Path) -> None:
    """The others are read."""
    for name in ["a.txt", "gone/b.txt", "sub/c.txt"]:
        put(tmp_path, name, "text")
    report = SourceReport()
    documents = read_documents([tmp_path], report=report)
    next(documents)
    shutil.rmtree(tmp_path / "gone")  # after it was seen; permissions would not stop root
    assert [d.id for d in documents] == [f"{tmp_path.name}/sub/c.txt"]
    (failed,) = report.failed
    assert failed.source == str(tmp_path / "gone")
    assert failed.reason.startswith("cannot be listed")


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    """Links to files inside are read, as in mounted volumes; links out, to folders and to nothing are not."""
    secret = put(tmp_path, "outside/secret.txt", "secret")
    folder = tmp_path / "in"
    put(folder, "..data/real.txt", "real")
    (folder / "linked.txt").symlink_to(Path("..data") / "real.txt")
    (folder / "secret.txt").symlink_to(secret)
    (folder / "round").symlink_to(folder)
    (folder / "outside").symlink_to(secret.parent)
    (folder / "gone.txt").symlink_to(folder / "nowhere.txt")
    documents, report = read(folder)
    assert [(d.id, d.text) for d in documents] == [("in/linked.txt", "real")]
    assert report.skips["links not followed"] == 4


def test_a_pipe_in_a_folder_does_not_hang(tmp_path: Path) -> None:
    """What is no regular file is passed over in a folder, and refused when it is named."""
    os.mkfifo(tmp_path / "pipe.txt")
    assert read(tmp_path)[1].other_files == {".txt": 1}
    assert "not a regular file" in refusal(tmp_path / "pipe.txt")


def test_named_files_need_a_known_kind(tmp_path: Path) -> None:
    """A file that a folder would skip is refused when it is named."""
    assert "of no known kind; known are .jsonl" in refusal(put(tmp_path, "notes", "text"))


def test_missing_paths_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    """A slip in the last path must not show after hours of reading the first."""
    put(tmp_path, "a.txt", "text")
    with pytest.raises(InvalidInput, match="no such file or folder"):
        next(read_documents([tmp_path / "a.txt", tmp_path / "b.txt"], report=SourceReport()))


def test_duplicate_ids_are_reported(tmp_path: Path) -> None:
    """The first is yielded; the report counts the others and names the first of each file."""
    first = put(tmp_path, "one/a.txt", "first")
    second = put(tmp_path, "two/a.txt", "second")
    table = put(tmp_path, "rows.csv", "id,text\n1,one\n1,again\n2,two\n2,again\n")
    documents, report = read(first, second, table)
    assert [d.text for d in documents] == ["first", "one", "two"]
    assert report.duplicates == 3
    assert [note.partition(";")[0] for note in report.notes] == [
        f"{second}: the id 'a.txt' came before",
        f"{table}:3: the id '1' came before",
    ]
    assert "--prefix-ids" in report.notes[0]


def test_a_name_of_arbitrary_bytes_is_refused_legibly(tmp_path: Path) -> None:
    """Such a name can be no id; the message can be printed all the same."""
    try:
        put(tmp_path, os.fsdecode(b"caf\xe9.txt"), "text")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert "caf\\xe9.txt: the file's name is not UTF-8" in refusal(tmp_path)
    assert read(tmp_path)[1].failures == 1


def test_what_a_report_keeps_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of bad and empty rows fill counters, not memory."""
    monkeypatch.setattr("jobs.sources.model.FAILURES_KEPT_MAX", 100)
    path = put(tmp_path, "a.jsonl", 'bad\n{"id": 1, "text": ""}\n' * 1000)
    _, report = read(path)
    assert (report.failures, len(report.failed)) == (1000, 100)
    assert (report.skips["empty"], len(report.skipped)) == (1000, 100)
    for at in range(1000):
        report.note(str(at))
    assert (len(report.notes), report.notes_dropped) == (NOTES_KEPT_MAX, 1000 - NOTES_KEPT_MAX)


def test_reading_is_lazy(tmp_path: Path) -> None:
    """The first document comes before the second file is opened."""
    put(tmp_path, "a.txt", "text")
    put(tmp_path, "b.txt", b"\xff")
    documents = read_documents([tmp_path])
    assert next(documents).id == f"{tmp_path.name}/a.txt"
    with pytest.raises(InvalidInput):
        next(documents)


def test_a_field_may_say_when_documents_expire(tmp_path: Path) -> None:
    """As a date or milliseconds, in JSON and in tables; an empty one says never, and it is no metadata."""
    options = SourceOptions(expires_field="until")
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"id": 1, "text": "a", "until": "2030-01-31"}\n{"id": 2, "text": "b", "until": null}\n')
    table = tmp_path / "b.csv"
    table.write_text("id,text,until\n3,c,1893456000000\n4,d,\n")
    documents, _ = read(lines, table, options=options)
    assert [one.expires_at for one in documents] == ["2030-01-31", None, 1893456000000, None]
    assert not any("until" in one.metadata for one in documents)
    lines.write_text('{"id": 1, "text": "a", "until": true}\n')
    assert "field 'until': expected a date, or milliseconds" in refusal(lines, options=options)


def test_fields_that_the_api_has_too(tmp_path: Path) -> None:
    """Are metadata with a note, once for each file, unless an option names them or leaves them out."""
    row = '{"id": %d, "text": "a", "language": "English", "expires_at": "2030-01-31"}\n'
    lines = put(tmp_path, "a.jsonl", row % 1 + row % 2)
    table = put(tmp_path, "b.csv", "id,text,language,expires_at\n3,c,,\n4,d,no,2030-01-31\n")
    documents, report = read(lines, table)
    assert documents[0].metadata == {"language": "English", "expires_at": "2030-01-31"}
    assert [note.partition(";")[0] for note in report.notes] == [
        f"{lines}:1: the field 'expires_at' becomes metadata",
        f"{lines}:1: the field 'language' becomes metadata",
        f"{table}:3: the field 'expires_at' becomes metadata",
        f"{table}:3: the field 'language' becomes metadata",
    ]
    options = SourceOptions(language_field="language", expires_field="expires_at")
    documents, report = read(lines, table, options=options)
    assert [one.language for one in documents] == ["English", "English", "", "no"]
    assert [*map(str, (one.metadata for one in documents)), *report.notes] == ["{}"] * 4
    for chosen in [SourceOptions(columns=("x",)), SourceOptions(skip_columns=("language", "expires_at"))]:
        assert read(lines, options=chosen)[1].notes == []
    put(tmp_path, "a.jsonl", '{"id": 1, "text": "a", "language": 5}\n')
    assert "a.jsonl:1: field 'language': expected a string" in refusal(lines, options=options)


@pytest.mark.parametrize("name", ["a.pdf", "b.docx", "c.xlsx", "d.eml"])
def test_an_empty_file_of_any_kind_is_skipped(tmp_path: Path, name: str) -> None:
    """Its library would call it broken."""
    (tmp_path / name).write_bytes(b"")
    report = SourceReport()
    assert list(read_documents([tmp_path], report=report)) == []
    assert (report.failures, report.skips[EMPTY.reason]) == (0, 1)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_progress_of_a_table_that_a_library_reads(tmp_path: Path, name: str) -> None:
    """It grows with the rows, up to the size of the file."""
    table = pa.table({"id": [str(at) for at in range(1000)], "text": [f"Row {at}." for at in range(1000)]})
    path = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as sink:
            sink.write_table(table, max_chunksize=250)
    read = [one.bytes_read for one in read_documents([path], report=SourceReport())]
    assert read == sorted(read)
    assert 0 < read[0] < read[-1] <= path.stat().st_size
