"""Which columns become metadata and text, and what is said of a table that is too wide."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.serving.process import ServerProcess
from jobs.sources import SourceOptions
from tests.jobs.test_sources import put, read
from tests.support.commands import nearline
from tests.support.files import xlsx
from tests.support.http import Http

WIDE = [f"c{at}" for at in range(598)]


def wide_table(rows: int = 50) -> str:
    return f"id,text,{','.join(WIDE)}\n" + "".join(f"{at},x,{','.join('1' * 598)}\n" for at in range(rows))


@pytest.mark.slow
def test_columns_can_be_chosen(tmp_path: Path) -> None:
    """In tables, JSON and front matter alike; the summary speaks of those alone."""
    put(tmp_path, "a.csv", "id,text,lang,price,secret\n1,x,en,5,s\n")
    put(
        tmp_path, "b.jsonl", '{"id": 2, "text": "y", "lang": "de", "metadata": {"price": 7, "secret": "s"}}\n'
    )
    put(tmp_path, "c.md", "---\nlang: fr\nsecret: s\n---\nText.")
    pq.write_table(
        pa.table({"id": ["4"], "text": ["z"], "lang": ["it"], "secret": ["s"]}), tmp_path / "d.parquet"
    )
    kept = [{"lang": "en"}, {"lang": "de"}, {"lang": "fr"}, {"lang": "it"}]
    documents, report = read(tmp_path, options=SourceOptions(columns=("lang",)))
    assert [one.metadata for one in documents] == kept
    assert report.types == {"lang": ["string"]}
    documents, report = read(tmp_path, options=SourceOptions(skip_columns=("secret", "price")))
    assert [one.metadata for one in documents] == kept
    assert report.columns_found == {"secret", "price"}


def test_a_row_can_be_text_as_a_whole(tmp_path: Path) -> None:
    """Each filled cell is a line `column: value`; skipped columns are no part of it."""
    put(tmp_path, "a.csv", "id,title,name,price,note,secret\n1,T,Lamp,12.5,,s\n")
    put(tmp_path, "b.json", json.dumps([{"id": 2, "name": "Desk", "sizes": [1, 2], "box": {"w": 3}}]))
    documents, report = read(tmp_path, options=SourceOptions(text_fields=("*",), skip_columns=("secret",)))
    assert report.failed == []
    assert [(one.id, one.title, one.text) for one in documents] == [
        ("1", "T", "name: Lamp\nprice: 12.5"),
        ("2", None, 'name: Desk\nsizes: [1,2]\nbox: {"w":3}'),
    ]
    assert documents[0].metadata == {"name": "Lamp", "price": 12.5}


def test_a_table_that_is_too_wide_is_one_failure(tmp_path: Path) -> None:
    """It names the options before anything of the file is sent, and the columns to choose from."""
    path = put(tmp_path, "wide.csv", wide_table())
    documents, report = read(path)
    assert documents == []
    (failed,) = report.failed
    assert failed.source == f"{path}:2"
    assert failed.reason.startswith(
        "598 columns would become metadata, and the service takes 64; --columns names"
    )
    assert "--skip-columns" in failed.reason
    assert ": id, text, c0, c1" in failed.reason
    assert failed.reason.endswith(", c17 and 580 more")
    for options in [SourceOptions(columns=("c1", "c2")), SourceOptions(metadata_keys_max=598)]:
        documents, report = read(path, options=options)
        assert (len(documents), report.failures) == (50, 0)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.xlsx"])
def test_no_message_lists_hundreds_of_columns(tmp_path: Path, name: str) -> None:
    """A table of 600 columns is named by the first of them, whatever is wrong with it."""
    columns = [f"column {at} {'x' * 100}" for at in range(600)]
    table = pa.table({column: ["1"] for column in columns})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content: dict[str, str | bytes] = {
        "a.csv": ",".join(columns) + "\n" + ",".join("1" * 600) + "\n",
        "a.jsonl": json.dumps(dict.fromkeys(columns, 1)) + "\n",
        "a.parquet": bytes(sink.getvalue()),
        "a.xlsx": xlsx(A=[["text", *columns, *columns], ["1"] * 1201]),
    }
    _, report = read(put(tmp_path, name, content[name]))
    assert report.failures == 1
    assert "580 more" in report.failed[0].reason
    assert len(report.failed[0].reason) < 2000
    wide = SourceOptions(text_fields=(columns[0],), metadata_keys_max=1000)
    if name == "a.csv":
        _, report = read(tmp_path / name, options=wide)
        assert len(report.summary()[1]) < 2000


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow", "a.xlsx"])
def test_no_column_hides_another(tmp_path: Path, name: str) -> None:
    """Two columns of one name: nothing of the table is read, and the message has the name."""
    heads, cells = ["id", "text", "tag", "tag"], ["1", "A row.", "one", "two"]
    table = pa.table([pa.array([cell]) for cell in cells], names=heads)
    sink = pa.BufferOutputStream()
    if name == "a.arrow":
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, sink)
    content: dict[str, str | bytes] = {
        "a.csv": f"{','.join(heads)}\n{','.join(cells)}\n",
        "a.xlsx": xlsx(A=[heads, cells]),
    }
    documents, report = read(put(tmp_path, name, content.get(name, bytes(sink.getvalue()))))
    assert documents == []
    assert report.failed[0].reason.endswith(": tag")


def test_rows_that_are_too_wide_among_others_are_one_failure(tmp_path: Path) -> None:
    """The others are read; nested fields count, empty ones do not."""
    wide = {"metadata": {"deep": {str(at): at for at in range(65)}}}
    rows = [
        {"id": 1, "text": "x", **{str(at): None for at in range(99)}},
        *[{"id": 2, "text": "x", **wide}] * 5,
    ]
    path = put(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    documents, report = read(path)
    assert [one.id for one in documents] == ["1"]
    (failed,) = report.failed
    assert failed.source == f"{path}:2"
    assert "65 columns would become metadata" in failed.reason
    assert "so are 5 rows in all, not sent" in failed.reason


def test_the_command_chooses_columns(http: Http, service: ServerProcess, tmp_path: Path) -> None:
    """The service's limit counts; a column that is nowhere is a failure, with similar ones."""
    put(tmp_path, "wide.csv", wide_table(3))
    name = http.new_collection()
    arguments = ["ingest", tmp_path / "wide.csv", "--url", service.url, "-c", name]
    ended = nearline(*arguments)
    assert ended.returncode == 1
    assert "1 failed:" in ended.stderr
    assert "--columns" in ended.stderr
    ended = nearline(*arguments, "--columns", "c1,c2", "--columns", "c3,col597")
    assert ended.returncode == 1
    assert "has a column, field or key 'col597' of metadata; there are c597, " in ended.stderr
    assert "and 578 more" in ended.stderr
    assert len(ended.stderr) < 1000
    ended = nearline(
        *arguments, "--skip-columns", "c1", "--columns", "c1,c2", "--columns", "c3", "--types", "c2=string"
    )
    assert ended.returncode == 0, ended.stderr
    ended = nearline(*arguments, "--columns", "c1,c2,c3")
    (one, *_) = http.ok("POST", f"/v1/collections/{name}/documents/scroll", {})["documents"]
    assert one["metadata"] == {"c1": 1, "c2": 1, "c3": 1}


FIELDS = {
    "--text-field": "text,body",
    "--title-field": "head",
    "--expires-field": "until",
    "--language-field": "tongue",
    "--vector-field": "numbers",
}


@pytest.mark.parametrize("option", FIELDS)
def test_a_field_that_no_row_has_is_a_failure(
    http: Http, service: ServerProcess, tmp_path: Path, option: str
) -> None:
    """A slip in its name would otherwise go unseen, and documents never expire. One row that has it is enough."""
    put(tmp_path, "a.jsonl", '{"id": 1, "text": "x"}\n')
    put(tmp_path, "b.md", f"---\n{FIELDS[option].split(',')[-1]}: 2099-01-31\n---\nText.")
    arguments = ["ingest", tmp_path, "--url", service.url, "-c", http.new_collection()]
    slipped = f"{FIELDS[option]}s"
    ended = nearline(*arguments, option, slipped)
    assert ended.returncode == 1
    name = slipped.rsplit(",", maxsplit=1)[-1]
    assert (
        f"{option}: no row that was read has a column or field {name!r}; there are id, text" in ended.stderr
    )
    assert ended.stdout.startswith("2 documents written")
    synced = nearline(*arguments, option, slipped, "--sync", "--state", tmp_path / ".state")
    assert (synced.returncode, f"{option}: no row" in synced.stderr) == (1, True)
    fields = dict.fromkeys(FIELDS[option].split(","))
    put(tmp_path, "c.jsonl", json.dumps({"id": 2, "text": "y", **fields}) + "\n")
    ended = nearline(*arguments, option, FIELDS[option])
    assert ended.returncode == 0, ended.stderr


def test_a_field_of_empty_cells_is_one(tmp_path: Path) -> None:
    """In tables and Parquet, too: the column is there, and its rows never expire."""
    put(tmp_path, "a/a.csv", "id,text,until\n1,x,\n")
    (tmp_path / "b").mkdir()
    table = {"id": ["1"], "text": ["x"], "until": pa.array([None], pa.string())}
    pq.write_table(pa.table(table), tmp_path / "b/b.parquet")
    put(tmp_path, "c/c.xlsx", xlsx(rows=[["id", "text", "until"], ["1", "x", ""]]))
    for folder in "abc":
        for field, failures in (("until", 0), ("untill", 1)):
            options = SourceOptions(expires_field=field)
            documents, report = read(tmp_path / folder, options=options)
            report.check_columns(options)
            assert (len(documents), report.failures) == (1, failures), report.failed
    assert report.failed[0].reason.endswith("'untill'; there are until, id, text")
