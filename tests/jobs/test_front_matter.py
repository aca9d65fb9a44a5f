"""Front matter and headings of Markdown files: nothing in them is lost, and no file takes long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from jobs.sources.front_matter import BLOCK_CHARS_MAX, split_front_matter
from jobs.sources.texts import first_heading, rst_headings
from tests.jobs.test_sources import put, read

YAML = """---
title: Refunds
tags:
  - money
  - returns
author:
  name: Ann
  teams: [shop, "desk"]
reviews:
  - by: Bob
    stars: 5
summary: >
  Two
  lines.
lang: no
zip: 00123
opens: 09:30
quoted: "10"
weight: 10
ratio: 0.5
draft: false
date: 2024-06-01
gone: null
---
Text.
"""
TOML = """+++
title = "Refunds"
date = 2024-06-01T10:00:00Z
weight = 10
[taxonomies]
tags = ["money", "returns"]
+++
Text.
"""


def test_nested_yaml_becomes_metadata(tmp_path: Path) -> None:
    """Lists and maps stay; plain values are read as in tables, so that `no`, zip codes and times keep their form."""
    ((one,), report) = read(put(tmp_path, "a.md", YAML))
    assert (one.title, one.text, report.notes) == ("Refunds", "Text.\n", [])
    assert one.metadata == {
        "tags": ["money", "returns"],
        "author": {"name": "Ann", "teams": ["shop", "desk"]},
        "reviews": [{"by": "Bob", "stars": 5}],
        "summary": "Two lines.\n",
        "lang": "no",
        "zip": "00123",
        "opens": "09:30",
        "quoted": "10",
        "weight": 10,
        "ratio": 0.5,
        "draft": False,
        "date": "2024-06-01",
    }


def test_no_value_is_lost_without_a_note() -> None:
    """Keys are what is written, also where YAML takes two of them for one; numbers that JSON lacks are strings."""
    keys = "---\n1: one\ntrue: yes\n0: zero\nfalse: no value\nnull: nothing\n1.0: again\n---\n"
    assert split_front_matter(keys).metadata == {
        "1": "one", "true": "yes", "0": "zero", "false": "no value", "null": "nothing", "1.0": "again",
    }  # fmt: skip
    numbers = "+++\nn = nan\ni = -inf\nl = [nan, 1]\n+++\n"
    assert split_front_matter(numbers).metadata == {"n": "nan", "i": "-inf", "l": ["nan", 1]}


def test_toml_needs_no_spaces() -> None:
    """A key and its value may touch their sign."""
    assert split_front_matter("+++\ntitle='T'\nx=1\n+++\nbody").metadata == {"title": "T", "x": 1}


def test_toml_becomes_metadata(tmp_path: Path) -> None:
    """As Hugo and Zola have it."""
    ((one,), _) = read(put(tmp_path, "a.md", TOML))
    assert (one.title, one.text) == ("Refunds", "Text.\n")
    assert one.metadata == {
        "date": "2024-06-01T10:00:00+00:00",
        "weight": 10,
        "taxonomies": {"tags": ["money", "returns"]},
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("---\ntitle: Refunds: how long\n---\nText.", "line 2: mapping values are not allowed here"),
        ("---\nkey: !!python/object/apply:os.system [ls]\n---\nText.", "could not determine a constructor"),
        ("---\ntitle: A\ntitle: B\n---\nText.", "line 3: duplicate key title"),
        ("---\na:\n  b: 1\n  'b': 2\n---\nText.", "line 4: duplicate key b"),
        ("+++\na = 1\na = 2\n+++\nText.", "overwrite"),
        ("---\na: &a [x, x]\nb: [*a, *a]\n---\nText.", "aliases"),
        ("---\nkey: " + "[" * 5000 + "\n---\nText.", "nested too deeply"),
        ("---\nkey: " + "x" * BLOCK_CHARS_MAX + "\n---\nText.", "longer than"),
        ("+++\nkey = nothing\n+++\nText.", "Invalid value"),
        ("---\n{title: [}\n---\nText.", "line 2"),
        ("---\ntitle: Refunds\n\nText.\n", "no line --- ends it"),
        ("+++\ntitle = 'Refunds'\n...\nText.\n", "no line +++ ends it"),
        ("---\ntitle: Refunds", "no line --- ends it"),
    ],
)
def test_what_cannot_be_read_stays_and_is_said(tmp_path: Path, text: str, problem: str) -> None:
    """The block stays in the text, and a note has the file and the reason."""
    path = put(tmp_path, "a.md", text)
    ((one,), report) = read(path)
    assert (one.text, one.title, one.metadata) == (text, "a.md", {})
    (note,) = report.notes
    assert note.startswith(f"{path}: front matter that cannot be read stays in the text: ")
    assert problem in note


def test_the_heading_below_what_cannot_be_read_is_the_title(tmp_path: Path) -> None:
    """The line that ends the block does not make a heading of its last key."""
    ((one,), _) = read(put(tmp_path, "a.md", "---\ntitle: a: b\ntags: x\n---\n\nIntro.\n\n# Refunds\n"))
    assert one.title == "Refunds"


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("---\ntitle: Refunds\n...\nText.", "Refunds", "Text."),
        ("---\n{title: Refunds}\n---\nText.", "Refunds", "Text."),
        ("---\n---\nText.", "a.md", "Text."),
        ("---\nA sentence.\n---\nText.", "A sentence.", "---\nA sentence.\n---\nText."),
        ("---\n\nText.", "a.md", "---\n\nText."),
        ("---\n[a](b)", "a.md", "---\n[a](b)"),
    ],
)
def test_other_blocks(tmp_path: Path, text: str, title: str, rest: str) -> None:
    """Dots end YAML too; what is no front matter is text, without a note."""
    ((one,), report) = read(put(tmp_path, "a.md", text))
    assert (one.title, one.text, report.notes) == (title, rest, [])


@pytest.mark.parametrize(
    "text",
    [
        "# a" + " " * 100_000 + "b",
        "#" * 100_000,
        "# " + "#" * 100_000 + "b",
        "# " + "# " * 50_000,
        "a" + " " * 100_000 + "\n--" + " " * 100_000 + "b",
        "```\n" * 50_000,
        "`" * 100_000 + "\n" + "`" * 99_999,
        "=" * 100_000,
        "===" + " " * 100_000 + "x",
        "===\n" * 25_000,
        "---\n" * 25_000,
        "---" + " " * 100_000 + "x",
        "---\nkey: v\n" + "--- x\n" * 20_000,
        "+++\nkey = 1\n" + " " * 100_000,
        "---\nkey:" + " " * 60_000 + "x\n---\n",
    ],
    ids=lambda text: text[:12].replace("\n", "|"),
)
@pytest.mark.parametrize("parse", [first_heading, rst_headings, split_front_matter])
def test_no_text_takes_long(parse: Any, text: str) -> None:
    """100,000 characters of what makes patterns backtrack take a fraction of a second."""
    begun = time.process_time()
    parse(text)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        ("# C#\n", "C#"),
        ("## Closed ##  \n", "Closed"),
        ("   ### Indented\n", "Indented"),
        ("    # code\n\n# Later\n", "Later"),
        ("#\n# \n##  ##\n# Real\n", "Real"),
        ("~~~\n# in\n```\n~~~~\n# out\n", "out"),
        ("Under\n  ---  \n", "Under"),
        ("| a |\n---\n", None),
    ],
)
def test_headings(text: str, heading: str | None) -> None:
    """By CommonMark's rules: closing marks go, those of a name stay, and code has none."""
    assert first_heading(text) == heading
