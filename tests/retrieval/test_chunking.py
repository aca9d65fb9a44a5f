"""Cutting texts into passages: bounded, complete, at good places."""

from __future__ import annotations

import argparse
import ast
import gc
import gzip
import heapq
import json
import re
import textwrap
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.documents.chunking import Span, split
from retrieval.documents.outline import code_outline, outline
from retrieval.embedding.counting import TokenCounter
from retrieval.embedding.models import load_model
from retrieval.embedding.tokens import TokenizerPool
from tests.support.http import Http


def words(text: str) -> list[int]:
    """A token is a run of up to four letters, or another visible character: words split as sub-words do."""
    return [match.start() for match in re.finditer(r"[a-z]{1,4}|\S", text)]


def texts_of(text: str, spans: list[Span]) -> list[str]:
    return [text[span.start : span.end] for span in spans]


def check(
    text: str, spans: list[Span], tokens_max: int, starts_of: Callable[[str], Sequence[int]] = words
) -> None:
    covered: set[int] = set()
    for span in spans:
        assert 0 <= span.start < span.end <= len(text)
        assert not text[span.start].isspace()
        assert not text[span.end - 1].isspace()
        assert len(starts_of(text[span.start : span.end])) == span.tokens <= tokens_max
        covered.update(range(span.start, span.end))
    assert all(at in covered for at, character in enumerate(text) if not character.isspace())
    assert [span.start for span in spans] == sorted({span.start for span in spans})


@settings(max_examples=300)
@given(
    st.text(alphabet=st.sampled_from("abcd  .!?\n\n。é𝒳\t{}#") | st.characters(), max_size=400),
    st.integers(2, 30),
    st.booleans(),
    st.data(),
)
def test_any_text(text: str, tokens_max: int, code: bool, data: st.DataObject) -> None:
    """Every visible character is covered, no passage is too long alone, each starts after the one before."""
    overlap = data.draw(st.integers(0, tokens_max // 2))
    check(text, split(text, words, tokens_max=tokens_max, overlap_tokens=overlap, code=code), tokens_max)


def test_fitting_text_is_one_passage() -> None:
    """A text that fits is one passage, trimmed; white space alone is none."""
    assert split("  one two.\n\nthree ", words, tokens_max=9, overlap_tokens=2) == [Span(2, 17, tokens=5)]
    assert split(" \n\t ", words, tokens_max=9, overlap_tokens=2) == []
    assert split("", words, tokens_max=9, overlap_tokens=2) == []


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("aa bb cc dd ee.\n\nff gg. hh ii jj kk ll", "aa bb cc dd ee."),
        ("aa bb cc dd ee ff. gg hh ii jj kk ll", "aa bb cc dd ee ff."),
        ("aa bb cc dd ee ff gg hh iiiijjjj kk ll", "aa bb cc dd ee ff gg hh"),
        ("aa bb cc dd ee ff。gg hh ii jj kk ll", "aa bb cc dd ee ff。"),
        ("abcd" * 20, "abcd" * 9),
    ],
    ids=["paragraph", "sentence", "word", "ideographic sentence", "no boundary"],
)
def test_where_passages_end(text: str, first: str) -> None:
    """A cut prefers a paragraph end, then a sentence end, then a space, in the last third of the window."""
    spans = split(text, words, tokens_max=9, overlap_tokens=0)
    assert texts_of(text, spans)[0] == first
    check(text, spans, 9)


PAGE = """Intro text that says what this is.

# Install

Download it and unpack it.

```shell
# not a heading
curl -O https://example.org/a.tar.gz

tar xf a.tar.gz
```

## On Debian {#debian}

Use the package instead.

Configure
=========

Write the file.
"""


@given(st.integers(24, 60), st.integers(0, 6))
def test_no_heading_is_left_behind(tokens_max: int, overlap: int) -> None:
    """A heading is in the passage of the text below it, as long as both fit."""
    for span in split(PAGE, words, tokens_max=tokens_max, overlap_tokens=overlap):
        last = PAGE[span.start : span.end].splitlines()[-1]
        assert not last.startswith(("# Install", "## On", "Configure", "===="))


def test_code_stays_whole() -> None:
    """A fenced block that fits a passage is in one; a line in it that looks like a heading is none."""
    spans = split(PAGE, words, tokens_max=40, overlap_tokens=4)
    assert [text.count("```") for text in texts_of(PAGE, spans)].count(1) == 0
    assert "not a heading" not in {span.heading for span in spans}


def test_headings_above_a_passage() -> None:
    """A passage knows the headings it begins under, outermost first: also the one that it begins with."""
    spans = split(PAGE, words, tokens_max=14, overlap_tokens=0)
    under = {PAGE[span.start : span.end].split("\n", maxsplit=1)[0]: span.heading for span in spans}
    assert under["Intro text that says what this is."] == ""
    assert under["# Install"] == under["```shell"] == "Install"
    assert under["## On Debian {#debian}"] == under["the package instead."] == "Install > On Debian"
    assert under["Configure"] == under["the file."] == "Configure"
    assert outline(PAGE).path(PAGE.index("Use the package")) == "Install > On Debian"
    assert outline(PAGE).path(PAGE.index("Write the file")) == "Configure"
    assert outline(PAGE).path(0) == ""


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# Title", "Title"),
        ("## Title  ##  ", "Title"),
        ("# Title {#anchor}", "Title"),
        ("# Title {#anchor} ##", "Title"),
        ("# Title {#an}chor}", "Title {#an}chor}"),
        ("# Learning C#", "Learning C#"),
        ("# ##", ""),
        ("#no space", ""),
    ],
)
def test_the_title_of_a_heading(line: str, title: str) -> None:
    """An anchor and closing marks are no part of it; marks that touch a word are."""
    assert outline(f"{line}\n\ntext").path(len(line)) == title


def test_a_line_of_spaces_takes_time_that_grows_with_it() -> None:
    """A heading is looked for in linear time, and not at all in a line that is too long for one."""
    began = time.process_time()
    outline("# a" + 100_000 * " " + "b\n" + f"# a{115 * ' '}b\n" * 5_000)
    assert time.process_time() - began < 1


UNITS = [
    "# a\nb c d\n",
    "# a\n## b\n",
    "a\n---\nb\n\n",
    "def f(x):\n  return [\n",
    '"""',
    "'''" + '""" ',
    "```\na\n",
    "- ```\n",
    "a::\n b\n",
    "# a {#b\n",
    "a\n\n",
    "a. ",
    "\t\n",
]


@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_splitting_takes_time_that_grows_with_the_text(unit: str, code: bool) -> None:
    """Ten times the text takes about ten times as long, whatever it consists of, not a hundred times: 2 MB of headings
    took 20 s."""

    def cpu_s(chars: int) -> float:
        text, began = unit * (chars // len(unit)), time.thread_time()
        split(text, words, tokens_max=64, overlap_tokens=8, code=code)
        return time.thread_time() - began

    gc.disable()  # it would look through all that other tests have left
    try:
        assert cpu_s(400_000) < 30 * max(cpu_s(40_000), cpu_s(40_000)) + 0.2
    finally:
        gc.enable()


@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize("unit", ["word\n\n", "word\n", "# a\nb\n", "a. "])
def test_splitting_looks_often_whether_its_caller_is_there(unit: str, code: bool) -> None:
    """At each passage, and every thousand lines."""
    steps: list[None] = []
    text = unit * (200_000 // len(unit))
    spans = split(text, words, tokens_max=64, overlap_tokens=8, code=code, on_step=lambda: steps.append(None))
    assert len(steps) >= len(spans) + text.count("\n") // 1000


def test_deep_code_takes_time_that_grows_with_it() -> None:
    """Each line lies one column deeper than the one before."""
    began = time.process_time()
    code_outline("".join(f"{' ' * column}a\n" for column in range(3000)))
    assert time.process_time() - began < 1


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_headings_of_any_lines(end: str) -> None:
    """Files of Windows have the headings of others."""
    lines = [
        "# Install",
        "",
        "Text.",
        "",
        "Printers",
        "--------",
        "",
        "More.",
        "```",
        "# no heading",
        "```",
        "End.",
    ]
    found = outline(end.join(lines))
    assert [(one.title, one.level) for one in found.headings] == [("Install", 1), ("Printers", 2)]


@pytest.mark.parametrize("item", ["- ", "* ", "1. ", "12) ", "  - "])
def test_comments_in_fences_of_lists_are_no_headings(item: str) -> None:
    """The fence begins behind the mark of the item, and ends indented or not."""
    for indent in ("", "    "):
        text = (
            f"# Install\n\n{item}```sh\n  # remove everything\n  rm -rf x\n{indent}```\n\n## After\n\nText."
        )
        assert [one.title for one in outline(text).headings] == ["Install", "After"]


def test_headings_without_end() -> None:
    """A text of nothing but headings is cut in time that grows with its length."""
    text = "## a heading\n\nand a word\n\n" * 15_000
    spans = split(text, words, tokens_max=24, overlap_tokens=4)
    assert len(spans) > 2_500
    assert {span.heading for span in spans} <= {"", "a heading"}


def test_passages_end_at_headings() -> None:
    """Where sections fit a passage, no passage holds the end of one and the beginning of the next."""
    text = "\n\n".join(f"## Part {at}\n\n" + "some words of it. " * 8 for at in range(6))
    spans = split(text, words, tokens_max=60, overlap_tokens=8)
    assert [part.split("\n")[0] for part in texts_of(text, spans)] == [f"## Part {at}" for at in range(6)]


PYTHON = '''# Copyright of somebody
import os


class Shop:
    """Sells things."""

    def open(
        self,
        hour: int,
    ) -> None:
        if hour > 8:
            self.door = True

        self.light = True

    # The other way round.
    def close(self) -> None:
        self.door = False


def main() -> None:
    Shop().open(9)


LIMIT = 3
'''

C = """#include <stdio.h>

int
opened(int hour)
{
    if (hour > 8)
        return 1;
#ifdef LATE
    return 2;
#endif

    return 0;
}

int closed;
"""

YAML = """# Where it runs
apiVersion: v1
metadata:
  name: shop
  labels:
    a: b
spec:
  replicas: 2
"""


@pytest.mark.parametrize(
    ("text", "line", "path"),
    [
        (PYTHON, "import os", ""),
        (PYTHON, "class Shop:", "class Shop"),
        (PYTHON, "        self.light = True", "class Shop > def open"),
        (PYTHON, "    # The other way", "class Shop"),
        (PYTHON, "        self.door = False", "class Shop > def close(self) -> None"),
        (PYTHON, "    Shop().open(9)", "def main() -> None"),
        (PYTHON, "LIMIT = 3", ""),
        (C, "    return 2;", "opened(int hour)"),
        (C, "    return 0;", "opened(int hour)"),
        (C, "int closed;", ""),
        (YAML, "  name: shop", "metadata"),
        (YAML, "    a: b", "metadata > labels"),
        (YAML, "  replicas: 2", "spec"),
    ],
)
def test_headings_of_code(text: str, line: str, path: str) -> None:
    """A line of code stands under the first lines of the blocks around it; a comment is no heading."""
    assert code_outline(text).path(text.index(line)) == path


def test_code_is_cut_between_functions() -> None:
    """A function that fits is in one passage, with the comment above it."""
    spans = split(PYTHON, words, tokens_max=48, overlap_tokens=4, code=True)
    passages = texts_of(PYTHON, spans)
    assert [text.split("\n")[0] for text in passages] == [
        "# Copyright of somebody",
        "def open(",
        "# The other way round.",
        "LIMIT = 3",
    ]
    headings = ["", "class Shop > def open", "class Shop > def close(self) -> None", ""]
    assert [span.heading for span in spans] == headings


def test_a_document_of_code(http: Http) -> None:
    """Metadata that name its programming language make a document source code."""
    name = http.new_collection()
    text = PYTHON * 5
    for metadata, heading in (
        ({}, "Copyright of somebody"),
        ({"programming_language": "python"}, "class Shop"),
    ):
        assert http.write(name, {"id": "a", "text": text, "metadata": metadata})["documents"] == 1
        [first] = [hit for hit in http.search(name, query="shop")["hits"] if hit["passage"] == 0]
        assert first.get("heading", "") == heading


def test_whole_sentences_are_not_repeated() -> None:
    """A passage that ends with a sentence shares nothing with the next, which begins with a whole one."""
    text = "some words of it, and more. " * 12
    spans = split(text, words, tokens_max=24, overlap_tokens=8)
    assert {part[:5] for part in texts_of(text, spans)} == {"some "}
    assert all(before.end < after.start for before, after in pairwise(spans))


def test_overlap() -> None:
    """Where a sentence is cut, neighbours share up to the tokens asked for, starting at a word."""
    text = " ".join(f"w{at:02}" for at in range(40))
    spans = split(text, words, tokens_max=12, overlap_tokens=6)
    for before, after in pairwise(spans):
        shared = text[after.start : before.end]
        assert 0 < len(words(shared)) <= 6
        assert text[after.start - 1] == " "


def test_wrong_settings() -> None:
    """An overlap as large as the window could never end, and is refused."""
    with pytest.raises(ValueError, match="overlap_tokens"):
        split("a", words, tokens_max=4, overlap_tokens=4)


@pytest.mark.model
def test_real_tokens_in_many_languages(model_folder: Path, shared_data: Path) -> None:
    """With the real tokenizer and eleven languages, passages tokenised alone stay within the bound."""
    counter = TokenCounter(TokenizerPool(load_model(model_folder).tokenizer_path))
    file = shared_data / "xquad-r" / "corpus.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    for at in range(0, len(texts), max(1, len(texts) // 60)):
        text = " ".join(texts[at : at + 4])
        check(text, split(text, counter.starts, tokens_max=40, overlap_tokens=8), 40, counter.starts)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("piece", ["Some words of a sentence. ", "検索", "x"])
def test_a_million_characters(model_folder: Path, piece: str) -> None:
    """A text of a million characters, with or without spaces, is cut in seconds."""
    counter = TokenCounter(TokenizerPool(load_model(model_folder).tokenizer_path))
    text = piece * (1_000_000 // len(piece))
    began = time.perf_counter()
    spans = split(text, counter.starts, tokens_max=200, overlap_tokens=32)
    assert time.perf_counter() - began < 30
    assert spans[0].start == 0
    assert spans[-1].end == len(text.rstrip())
    for span in spans[:: max(1, len(spans) // 20)]:
        assert len(counter.starts(text[span.start : span.end])) <= 200


def test_the_end_of_a_function_gives_its_name_to_no_other() -> None:
    """A passage that begins in the last lines of one function and is mostly another is headed by that one."""
    lines = [f"    total_{at} = first + second + {at}" for at in range(9)]
    text = "\n".join(["def long(first, second):", *lines, "", "def merge(first):", *lines[:4]])
    spans = split(text, words, tokens_max=30, overlap_tokens=4, code=True)
    assert [span.heading for span in spans][:1] == ["def long(first, second)"]
    for span in spans:
        passage = text[span.start : span.end]
        before, begins, _ = passage.partition("def merge")
        if begins:
            wanted = "def long(first, second)" if 2 * len(before) > len(passage) else "def merge(first)"
            assert span.heading == wanted


@pytest.mark.parametrize("module", [heapq, argparse, textwrap, json.decoder], ids=lambda one: one.__name__)
def test_headings_of_code_name_what_a_passage_is_in(module: ModuleType) -> None:
    """Each part of a heading is the first line of a class or function, and the passage lies, at least partly, in the
    innermost one."""
    text = Path(str(module.__file__)).read_text()
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    nodes = [
        (starts[node.lineno - 1], starts[node.end_lineno or 0], node.name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    named = 0
    for span in split(text, words, tokens_max=120, overlap_tokens=16, code=True):
        titles = span.heading.split(" > ") if span.heading else []
        names = [re.match(r"(?:async )?(?:class|def) (\w+)|\w+.*=", title) for title in titles]
        assert all(names), span.heading
        comments = all(line.lstrip().startswith("#") for line in text[span.start : span.end].splitlines())
        if comments or not titles or not (name := names[-1]) or not name[1]:
            continue  # the parser has no place for comments behind the last statement
        inside = {found for begin, end, found in nodes if begin < span.end and end >= span.start}
        assert name[1] in inside, (span.heading, text[span.start : span.end])
        named += 1
    assert named > 10


RST = """Environment Variables
---------------------

Set them in the file::

   # This is a line comment.
   HOME = /root

   # Another one
   =====

They are read once.

.. code-block:: python
   :linenos:

   # Read the variables
   import os

   Title
   -----

Loading
-------

.. note:: ``#`` begins a comment.

   # Not a heading either

# A heading
"""


def test_comments_in_literal_blocks_are_no_headings() -> None:
    """Whatever is indented below `::` or a directive; what follows the block has headings again."""
    found = outline(RST)
    assert [heading.title for heading in found.headings] == ["Environment Variables", "Loading", "A heading"]
    assert found.path(RST.index("HOME")) == "Environment Variables"
    assert found.path(RST.index("Not a heading")) == "Loading"
