"""Every error has its status, and looks the same over HTTP."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import apsw
import msgspec
import pytest

from indexes.base import errors as tree
from indexes.base.errors import NearlineError
from jobs.serving.process import serving
from retrieval.handlers.error_shapes import own_response
from retrieval.handlers.error_shapes import response as shaped
from retrieval.wire.errors import STATUS, ErrorDetail, error_of, status_of, type_name, without_folders
from tests.retrieval.test_examples import bodies_of, filled
from tests.support.http import Http

ROOT = Path(__file__).parents[2]


def subclasses(kind: type[NearlineError]) -> set[type[NearlineError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


OURS = sorted(
    (kind for kind in subclasses(NearlineError) if kind.__module__ == tree.__name__), key=lambda k: k.__name__
)


@pytest.mark.parametrize("kind", OURS)
def test_every_error_of_the_tree_is_in_the_table(kind: type[NearlineError]) -> None:
    """Each class has a line of its own, so that adding one means deciding its status."""
    assert kind in STATUS


def test_every_error_comes_back_from_the_wire() -> None:
    """Another node may answer with those that are defined where they are raised, too."""
    for kind in subclasses(NearlineError):
        error = error_of(ErrorDetail(type_name(kind), "it is so", "field"))
        assert (type(error), error.message, error.param) == (kind, "it is so", "field")
        assert own_response(error).status == status_of(error)


def test_the_tree_is_drawn_in_full() -> None:
    """The picture in the module's docstring names every class."""
    for kind in OURS:
        assert f" {kind.__name__} " in f"{tree.__doc__} ".replace("\n", " ")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (tree.InvalidInput("x", param="k"), 422),
        (tree.TooLarge("x"), 413),
        (tree.NotFound("x"), 404),
        (tree.ModelMismatch("x"), 409),
        (tree.Overloaded("x", retry_after_s=3), 429),
        (tree.DeadlineExceeded("x"), 503),
        (tree.DiskFull("x"), 507),
        (tree.Damaged("x"), 500),
        (tree.Quarantined("x"), 503),
        (tree.OutOfDescriptors("x"), 503),
    ],
)
def test_statuses(error: NearlineError, status: int) -> None:
    """The documented ones."""
    assert status_of(error) == status


PLACES = ["/v1/collections", "/v1/embeddings", "/api/embed", "/embed", "/v2/embed", "/v1/rerank"]


@pytest.mark.parametrize("path", PLACES)
def test_what_is_over_soon_says_when(path: str) -> None:
    """Every 429, and every 503 but that of a collection that is out of service, has Retry-After in every dialect."""
    kinds = {
        kind for kind in subclasses(NearlineError) if kind.__module__.startswith(("indexes", "retrieval"))
    }
    soon = [kind for kind in kinds if STATUS.get(kind) in (429, 503) and kind is not tree.Quarantined]
    assert len(soon) > 4
    for kind in soon:
        answer = shaped(path, kind("x"))
        assert answer.status in (429, 503)
        assert int(answer.headers["Retry-After"]) >= 1
        assert int(answer.headers["Retry-After-Ms"]) >= 1
    assert "Retry-After" not in shaped(path, tree.Quarantined("x")).headers


@pytest.mark.slow
def test_no_answer_is_busy_without_saying_until_when() -> None:
    """A status of 429 or 503 that a handler writes by itself stands beside Retry-After."""
    places = 0
    for source in (ROOT / "retrieval").rglob("*.py"):
        for call in ast.walk(ast.parse(source.read_text())):
            if isinstance(call, ast.Call) and any(
                one.arg == "status" and isinstance(one.value, ast.Constant) and one.value.value in (429, 503)
                for one in call.keywords
            ):
                places += 1
                assert "Retry-After" in ast.unparse(call), f"{source}:{call.lineno}"
    assert places


def test_folders_are_not_told(tmp_path: Path) -> None:
    """A message keeps the folder's last name and what is below it; relative folders tell nothing and stay."""
    data = tmp_path / "data"
    message = f"no space left for {data}/collections/docs/log.db"
    assert (
        without_folders(message, [data, Path("models")]) == "no space left for data/collections/docs/log.db"
    )
    assert without_folders("models/a is missing", [Path("models")]) == "models/a is missing"


def test_the_body() -> None:
    """Type, message and, where there is one, the field; Retry-After for what is worth trying again."""
    answer = own_response(tree.Overloaded("too much", retry_after_s=2.4, param="documents"))
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "3"
    assert isinstance(answer.body, bytes)
    assert msgspec.json.decode(answer.body) == {
        "error": {"type": "overloaded", "message": "too much", "param": "documents"}
    }
    assert type_name(tree.DiskFull) == "disk_full"
    assert type_name(tree.NotADataDirectory) == "not_a_data_directory"


def test_no_answer_tells_where_files_lie(tmp_path: Path, model_folder: Path) -> None:
    """Whatever is asked of a collection whose log cannot be opened, or whose folder is gone while it serves."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(data, environ) as server:
        for name in ("docs", "lost"):
            Http(server.url).ok("POST", "/v1/collections", {"name": name})
            Http(server.url).write(name, {"id": "a", "text": "A boat."})
    db = apsw.Connection(str(data / "docs" / "log.db"))
    db.execute("UPDATE meta SET value = 'strange' WHERE key = 'format'")
    db.close()
    with serving(data, environ) as server:
        http = Http(server.url)
        (data / "lost").rename(tmp_path / "elsewhere")
        replies = [http.call("GET", "/v1/collections")]
        assert "log format 'strange'" in replies[0].body["quarantined"][0]["reason"]
        jobs = [http.reindex("lost")]
        assert jobs[0]["status"] == "failed"
        replies.append(http.call("POST", "/v1/collections", {"name": "new", "model": "missing"}))
        described = http.ok("GET", "/openapi.json")["paths"]
        ending = [(path, by) for path, by in described.items() if not path.endswith("/watch")]
        operations = [(method, path, one) for path, by in ending for method, one in by.items()]
        for method, path, one in sorted(operations, key=lambda operation: operation[0] == "delete"):
            place = filled(path, one, [jobs[0]["id"]])
            for name in ("docs", "lost"):
                at = place.replace("s/docs", f"s/{name}")  # collections and vector stores
                replies += [http.call(method.upper(), at, body) for _, body in bodies_of(one)]
        assert {503, 200, 404} <= {reply.status for reply in replies}
        for reply in replies:
            told = json.dumps([reply.body, dict(reply.headers.items())], ensure_ascii=False)
            assert str(tmp_path) not in told
            assert str(model_folder.parent) not in told
