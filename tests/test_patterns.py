"""No regular expression backtracks: each one takes time in proportion to its text, whatever the text is.

Every pattern in the code is found, here and in code to come, and fed with what tends to hurt: parts of a text that it
matches, with each of its characters, or two of them in turn, repeated in the middle, and an ending that fails.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import permutations
from re import _constants as ops
from re import _parser as parser
from typing import Any, NamedTuple

import pytest
import regex

from tests.test_architecture import ABSENT, MODULES, ROOT

METHODS = frozenset({"match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split"})
CALL = re.compile(rf"\b(\w+)\.({'|'.join(METHODS)})\b")
REPEATS_FEW = 16  # enough to see exponential time, which nothing could end
REPEATS = 512  # in the first look at a text
REPEATS_MORE = 8
SUSPECT_S = 0.0005  # of CPU; a linear pattern takes a tenth of it for that look
GROWTH_MAX = 3 * REPEATS_MORE
# `regex` shows no syntax tree: characters of the classes its patterns are made of.
CHARACTERS = "aA1 \n\t_.,-'#[](<>*\"`=\u00e9\u6f22\u0e01\u0301\u200b/:{|~$@+\u2019"
CATEGORIES = {ops.CATEGORY_DIGIT: "1", ops.CATEGORY_SPACE: " \n", ops.CATEGORY_WORD: "a_"}
# Patterns for text that nobody outside chooses, or whose length is bounded where they are used.
BOUNDED = {
    ("retrieval.server.openapi", "PATTERN"): "paths of our own routes",
    ("retrieval.observe.request_log", "STAGE"): "the Server-Timing header of our own answer",
    ("jobs.models.export.sources", "HUB_CONFIGURATION"): "names of files on a model hub, matched as a whole",
}


class Used(NamedTuple):
    """A pattern, where it stands, and the methods it is called with."""

    module: str
    name: str
    pattern: Any
    methods: frozenset[str]


def patterns() -> list[Used]:
    texts = {
        name: (ROOT / name.replace(".", "/")).with_suffix(".py").read_text()
        for name in MODULES
        if name not in ABSENT
    }
    called: dict[str, set[str]] = defaultdict(set)
    for text in texts.values():
        for name, method in CALL.findall(text):
            called[name].add(method)
    found = {}
    for module, text in texts.items():
        for name, pattern in compiled_in(importlib.import_module(module)):
            methods = frozenset(called.get(name, {"finditer", "match"}))
            found[module, pattern.pattern] = Used(module, name, pattern, methods)
        for line, written, method in written_in(text):
            found[module, written] = Used(module, f"line {line}", re.compile(written), frozenset({method}))
    return list(found.values())


def compiled_in(module: Any) -> Iterator[tuple[str, Any]]:
    """Patterns at the top of a module and of its classes, in tuples and dictionaries too."""
    classes = [
        one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__
    ]
    for holder in (module, *classes):
        for name, value in vars(holder).items():
            for inner in flat(value):
                if isinstance(inner, re.Pattern | regex.Pattern):
                    yield name, inner


def flat(value: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(value, dict) and depth:
        value = [*value, *value.values()]
    if isinstance(value, tuple | list | set | frozenset) and depth:
        for one in value:
            yield from flat(one, depth - 1)
    else:
        yield value


def written_in(text: str) -> Iterator[tuple[int, str | bytes, str]]:
    """Patterns written as an argument: `re.sub(r"...", ...)`."""
    if not any(name in {"re", "regex"} for name, _ in CALL.findall(text)):
        return
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in METHODS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in {"re", "regex"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str | bytes)
        ):
            yield node.lineno, node.args[0].value, node.func.attr


def characters_of(tree: Any) -> set[str]:
    """One of each kind of character that a pattern tells apart."""
    found: set[str] = set()
    for op, argument in tree:
        if op is ops.LITERAL:
            found.add(chr(argument))
        elif op is ops.RANGE:
            found |= {chr(argument[0]), chr(argument[1])}
        elif op is ops.CATEGORY:
            found |= set(
                {ops.CATEGORY_DIGIT: "1", ops.CATEGORY_SPACE: " \n", ops.CATEGORY_WORD: "a_"}.get(
                    argument, "!"
                )
            )
        elif op is ops.IN:
            found |= characters_of(argument)
        elif op is ops.BRANCH:
            found |= set().union(*(characters_of(one) for one in argument[1]))
        elif isinstance(argument, tuple) and argument and isinstance(argument[-1], parser.SubPattern):
            found |= characters_of(argument[-1])
    return found


def shortest_match(tree: Any) -> str:
    """About the shortest text that matches, with each repeated part once."""
    text = ""
    for op, argument in tree:
        if op is ops.LITERAL:
            text += chr(argument)
        elif op in {ops.ANY, ops.NOT_LITERAL}:
            text += "a"
        elif op is ops.IN:
            kinds = characters_of(argument)
            negated = argument[0][0] is ops.NEGATE
            text += next((one for one in "aA1 !~" if one not in kinds), "b") if negated else min(kinds)
        elif op in {ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT}:
            text += shortest_match(argument[2]) * max(argument[0], 1)
        elif op is ops.BRANCH:
            text += shortest_match(argument[1][0])
        elif op is ops.SUBPATTERN:
            text += shortest_match(argument[3])
        elif op is ops.ATOMIC_GROUP:
            text += shortest_match(argument)
    return text


def texts_for(pattern: Any) -> Iterator[Callable[[int], Any]]:
    """Texts that may hurt, each of any number of repeats."""
    source = pattern.pattern
    binary = isinstance(source, bytes)
    if isinstance(pattern, re.Pattern):
        tree = parser.parse(source, pattern.flags & ~re.UNICODE if not binary else pattern.flags)
        example = shortest_match(tree)
        kinds = sorted({*characters_of(tree), *"a \n!"})[:32]
    else:
        example, kinds = "", list(CHARACTERS)
    pumps = [*kinds, *map("".join, permutations(kinds[:8], 2)), *filter(None, [example])]
    for at in range(min(len(example), 24) + 1):
        for pump in pumps:
            for end in (example[at:], "\n", "\x00"):
                yield (
                    lambda n, at=at, pump=pump, end=end: (  # type: ignore[misc]
                        encoded(example[:at] + pump * n + end, binary=binary)
                    )
                )


def encoded(text: str, *, binary: bool) -> str | bytes:
    return text.encode() if binary else text


def cpu_s(pattern: Any, method: str, text: Any) -> float:
    run = getattr(pattern, "finditer" if method in {"findall", "sub", "subn", "split"} else method)
    began = time.thread_time()
    result = run(text)
    if method not in {"match", "fullmatch", "search"}:
        for _ in result:
            pass
    return time.thread_time() - began


PATTERNS = patterns()


@pytest.mark.parametrize("used", PATTERNS, ids=[f"{one.module}.{one.name}" for one in PATTERNS])
def test_time_grows_with_the_text_and_no_faster(used: Used) -> None:
    """Eight times the text takes at most twenty-four times as long, from any text that looks slow."""
    if (used.module, used.name) in BOUNDED:
        return
    for method in used.methods:
        for text in texts_for(used.pattern):
            assert min(cpu_s(used.pattern, method, text(REPEATS_FEW)) for _ in range(2)) < SUSPECT_S, (
                method,
                text(3),
            )
            if cpu_s(used.pattern, method, text(REPEATS)) < SUSPECT_S:
                continue
            little = min(cpu_s(used.pattern, method, text(REPEATS)) for _ in range(3))
            much = min(cpu_s(used.pattern, method, text(REPEATS * REPEATS_MORE)) for _ in range(2))
            assert much < max(SUSPECT_S * REPEATS_MORE, GROWTH_MAX * little), (method, text(3), little, much)


@pytest.mark.slow
def test_a_backtracking_pattern_would_be_found() -> None:
    """The texts find what once stopped the service."""
    once = [
        (re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*(?:\{#[^}]*\}[ \t]*)?#*[ \t]*$"), "match"),
        (re.compile(r" - at `(?:key in )?\$\.?(?P<path>.*)`$"), "search"),
        (regex.compile(r"\p{L}?\p{Nd}+(?:[.,]\p{Nd}+)+"), "finditer"),
    ]
    for pattern, method in once:
        with pytest.raises(AssertionError):
            test_time_grows_with_the_text_and_no_faster(Used("", "", pattern, frozenset({method})))
