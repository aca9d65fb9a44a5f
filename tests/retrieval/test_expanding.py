"""Expanded hits: the neighbors, the section or the document of a passage, as they stand in the document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.reading.surroundings import Reach, _around
from jobs.serving.process import serving
from tests.support.http import Http

SENTENCE = "Der Fluss führt in {0} viel Wasser, und die Brücke {0} hält es aus. "
GUIDE = "\n\n".join(
    f"# Kapitel {number}\n\n" + "".join(SENTENCE.format(f"{number}.{at}") for at in range(40))
    for number in range(4)
)
CHARS_MAX = 3000


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[tuple[Http, str]]:
    """A service with a small bound, and a long document in four sections of several passages each."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_LIMITS_EXPANDED_CHARS_MAX": str(CHARS_MAX),
    }
    with serving(tmp_path_factory.mktemp("expanding") / "data", environ) as server:
        http = Http(server.url)
        name = http.new_collection()
        http.write(
            name, {"id": "guide", "text": GUIDE, "title": "Führer"}, {"id": "short", "text": "Viel Wasser."}
        )
        yield http, name


EXPAND: list[Any] = [{"before": 1, "after": 2}, {"after": 1}, {}, "section", "document"]


@pytest.mark.parametrize("expand", EXPAND, ids=str)
def test_expanded_text_is_the_documents(guide: tuple[Http, str], expand: Any) -> None:
    """It is `document[start:end]`, holds the hit, and ends where its first and last passages do."""
    http, name = guide
    passages = {
        hit["passage"]: hit for hit in http.search(name, query="Wasser", k=100)["hits"] if hit["title"]
    }
    hits = http.search(name, query="Wasser Brücke", k=100, expand=expand)["hits"]
    assert len(hits) == len(passages) + 1
    for hit in hits:
        shown = hit["expanded"]
        text = GUIDE if hit["document_id"] == "guide" else "Viel Wasser."
        assert shown["text"] == text[shown["start"] : shown["end"]]
        assert hit["text"] in shown["text"]
        assert len(shown["text"]) <= CHARS_MAX
        first, last = shown["passages"]
        assert first <= hit["passage"] <= last
        if hit["document_id"] == "guide":
            assert (shown["start"], shown["end"]) == (passages[first]["start"], passages[last]["end"])
            headings = {passages[at]["heading"] for at in range(first, last + 1)}
            assert expand != "section" or headings == {hit["heading"]}
            if isinstance(expand, dict):
                assert (first, last) == (
                    max(hit["passage"] - expand.get("before", 0), 0),
                    min(hit["passage"] + expand.get("after", 0), max(passages)),
                )


def test_what_is_left_out_is_said(guide: tuple[Http, str]) -> None:
    """A document longer than `limits.expanded_chars_max` is cut at whole passages around the hit, and says so."""
    http, name = guide
    for hit in http.search(name, query="Wasser", k=100, expand="document")["hits"]:
        assert hit["expanded"].get("cut", False) == (hit["document_id"] == "guide")


@pytest.mark.slow
def test_expanded_hits_keep_the_bytes_of_an_answer(tmp_path: Path, model_folder: Path) -> None:
    """413 naming k where the hits have room and what is around them has not."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_LIMITS_ANSWER_BYTES_MAX": "60000",
    }
    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)
        name = http.new_collection()
        http.write(name, {"id": "guide", "text": GUIDE})
        search = {"query": "Wasser", "k": 10}
        path = f"/v1/collections/{name}/search"
        assert http.call("POST", path, search).status == 200
        reply = http.call("POST", path, {**search, "expand": "document"})
        assert (reply.status, reply.body["error"]["param"]) == (413, "k")


@pytest.mark.parametrize("expand", [{"before": -1}, {"before": 101}, {"around": 1}, "chapter", 3], ids=str)
def test_a_wrong_expand_is_refused(guide: tuple[Http, str], expand: Any) -> None:
    """The error names the field."""
    http, name = guide
    reply = http.call("POST", f"/v1/collections/{name}/search", {"query": "Wasser", "expand": expand})
    assert reply.status == 422
    assert reply.body["error"]["param"].startswith("expand")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.sampled_from("ab")), min_size=1), st.data()
)
def test_the_room_is_used_around_the_passage(pieces: list[tuple[int, int, str]], data: st.DataObject) -> None:
    """Whole passages next to each other, in bounds; `cut` if and only if one that belongs to it is missing."""
    rows: list[tuple[int, int, int, str]] = []
    end = 0
    for ordinal, (length, overlap, heading) in enumerate(pieces):
        start = max(end - overlap, rows[-1][1] if rows else 0)
        end = max(start + length, end)
        rows.append((ordinal, start, end, heading))
    at = data.draw(st.integers(0, len(rows) - 1))
    reach = Reach(None, None, data.draw(st.integers(1, 60)), data.draw(st.booleans()))
    low, high, cut = _around(rows, at, reach)
    assert low <= at <= high
    assert low == high or rows[high][2] - rows[low][1] <= reach.chars_max
    shown = {row[3] for row in rows[low : high + 1]}
    assert not reach.same_heading or shown == {rows[at][3]}
    outside = rows[low - 1 : low] if low else []
    outside += rows[high + 1 : high + 2]
    assert cut == any(not reach.same_heading or row[3] == rows[at][3] for row in outside)
