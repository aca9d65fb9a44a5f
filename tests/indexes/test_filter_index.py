"""The filter index of a part: growing, sealed, loaded, built and merged, it answers as plain Python does."""

from __future__ import annotations

import bisect
import math
import operator
import random
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput
from indexes.base.model import Metadata, Scalar
from indexes.base.paths import leaves
from indexes.filters.columns import ARRAYS, SealedFilters
from indexes.filters.filter_part import FilterPart
from indexes.filters.grammar import (
    Comparison,
    Compound,
    Exists,
    Filter,
    Kind,
    Not,
    Unchecked,
    kind_of,
    parse_filter,
)
from indexes.filters.index import (
    KEPT_FROM,
    REMEMBERED_MAX,
    FiltersBuilder,
    GrowingFilters,
    GrowingFiltersView,
)
from indexes.filters.satisfiable import require_satisfiable
from tests.support.cpu import slowness

# --- the meaning, in plain Python -----------------------------------------------------------------------------

HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "eq": operator.eq,
    "prefix": lambda have, want: have[: len(want)] == want,
}


def satisfies(metadata: Metadata, condition: Filter) -> bool:
    if isinstance(condition, Compound):
        inner = [satisfies(metadata, part) for part in condition.filters]
        return all(inner) if condition.type == "and" else any(inner)
    if isinstance(condition, Not):
        return not satisfies(metadata, condition.filter)
    if isinstance(condition, Unchecked):
        return satisfies(metadata, condition.filter)
    values = values_of(metadata, condition.key)
    if isinstance(condition, Exists):
        return bool(values) == condition.value
    if condition.type in ("ne", "nin"):
        positive = {"ne": "eq", "nin": "in"}[condition.type]
        opposite = Comparison(positive, condition.key, condition.value, condition.literal)  # type: ignore[arg-type]
        return not satisfies(metadata, opposite)
    holds = HOLDS["eq" if condition.type == "in" else condition.type]
    wanted = condition.value if isinstance(condition.value, list) else [condition.value]
    return any(
        have == want if condition.literal else compares(condition.type, have, want, holds)
        for have in values
        for want in map(composed, wanted)
        if kind_of(have) == kind_of(want)
    )


def composed(value: Any) -> Any:
    """Strings that Unicode means to be equal are equal."""
    return normalize("NFC", value) if isinstance(value, str) else value


def values_of(metadata: Metadata, key: str) -> list[Scalar]:
    held = [value for name, value in metadata.items() if composed(name) == composed(key)]
    return [composed(one) for value in held for one in (value if isinstance(value, list) else [value])]


def compares(operation: str, have: Scalar, want: Scalar, holds: Callable[[Any, Any], bool]) -> bool:
    """One value against one value of its kind: by spans where both are dates, literally otherwise."""
    inside, at = span(want), date(have)
    if operation in ("eq", "in") and have == want:
        return True
    if operation == "prefix" or inside is None:
        return holds(have, want)
    if at is None:
        if operation not in ("eq", "in"):
            year = re.match(r"[0-9]{4}", str(have))
            literal = year and re.fullmatch(r"[0-9]{4}(-[0-9]{2})?", str(want))
            return bool(literal) and holds(have, want)
        return holds(have, want)
    begin, end = inside
    if operation in ("eq", "in"):
        return begin <= at[0] < end
    return {"gt": at[0] >= end, "gte": at[0] >= begin, "lt": at[0] < begin, "lte": at[0] < end}[operation]


@cache
def span(value: object) -> tuple[timedelta, timedelta] | None:
    """The instants that a text in a filter means: from the first, before the second."""
    if not isinstance(value, str):
        return None
    if at := date(value):
        return at[0], at[0] + (timedelta(days=1) if len(value) == 10 else timedelta(microseconds=1))
    if not re.fullmatch(r"[0-9]{4}(-[0-9]{2})?", value):
        return None
    first = date(f"{value}-01" if "-" in value else f"{value}-01-01")
    if first is None:
        return None
    days = [date(f"{value}-{day}") for day in (31, 30, 29, 28)] if "-" in value else [date(f"{value}-12-31")]
    return first[0], next(day for day in days if day)[0] + timedelta(days=1)


@cache
def date(value: object) -> tuple[timedelta] | None:
    """The instant since 1970, read by hand: a day, and perhaps a time, and perhaps a zone."""
    if not isinstance(value, str) or not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}($|[T ][0-9])", value):
        return None
    day, time, zone = value[:10], value[11:19] or "00:00:00", value[19:] or "Z"
    try:
        since = datetime.strptime(f"{day} {time}Z", "%Y-%m-%d %H:%M:%S%z") - datetime(1970, 1, 1, tzinfo=UTC)
        if zone == "Z":
            return (since,)
        hours, minutes = zone[1:].split(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        return (since - offset,) if zone[0] == "+" else (since + offset,)
    except (ValueError, IndexError):
        return None


def expected(rows: Sequence[Metadata], condition: Filter) -> list[int]:
    return [row for row, metadata in enumerate(rows) if satisfies(metadata, condition)]


def keys_in(rows: Sequence[Metadata]) -> frozenset[str]:
    return frozenset(composed(key) for metadata in rows for key, value in metadata.items() if value != [])


# --- every way to make an index ---------------------------------------------------------------------------------


def grown(rows: Sequence[Metadata]) -> GrowingFilters:
    growing = GrowingFilters()
    assert [growing.add(metadata) for metadata in rows] == list(range(len(rows)))
    return growing


def sealed(rows: Sequence[Metadata]) -> SealedFilters:
    return grown(rows).seal(len(rows))


def built(rows: Sequence[Metadata], order: Sequence[int]) -> SealedFilters:
    """Rows of equal metadata together, otherwise in this order."""
    builder, done = FiltersBuilder(len(rows)), set()
    for row in order:
        same = [other for other in order if repr(rows[other]) == repr(rows[row])]
        if row not in done:
            builder.add(np.array(same), rows[row])
            done |= set(same)
    return builder.finish()


def loaded(index: SealedFilters, folder: Path) -> SealedFilters:
    index.save(folder)
    return SealedFilters.load(folder)


def merged(rows: Sequence[Metadata], kept: Sequence[bool], cut: int) -> SealedFilters:
    halves = ((rows[:cut], kept[:cut]), (rows[cut:], kept[cut:]))
    return SealedFilters.merged([(sealed(half), np.array(flags, bool)) for half, flags in halves])


# --- random metadata and filters --------------------------------------------------------------------------------

KEYS = ["a", "b", "with/../dots", "ключ", "cle\u0301", "cl\u00e9"]
DATES = ["2026-01-05", "2026-01-05T00:00:00Z", "2026-01-05T01:30:00+02:00", "2026-01-04 23:30:00"]
DATES += ["1969-12-31T20:00:00-05:00", "0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"]
NO_DATES = [
    "2026-02-30",
    "2026-01",
    "2026",
    "9999-12",
    "9999",
    "2026-00",
    "2026-01-05x",
    "2026-01-05T",
    "20260105",
    "2026-Q1",
    "2026é",
    "202",
    "TBD",
    "２０２６-01-05",
]
TEXTS = st.sampled_from(
    [
        "",
        "a",
        "a\0",
        "A",
        "ab",
        "seven77",
        "seven777",
        "seven77\0",
        "\u00e9",
        "e\u0301",
        "e\u0301te\u0301",
        "\uffff",
        "😀",
        "1",
        *DATES,
        *NO_DATES,
    ]
)
NUMBERS: st.SearchStrategy[int | float] = st.one_of(
    st.sampled_from(
        [0, -0.0, 1, 1.0, 0.1, -1, 2**53, 2.0**53, 2**53 + 1, 2**53 + 2, 2.0**63, 2**63 - 1, -(2**63)]
    ),
    st.sampled_from([2**62 + at for at in range(-3, 4)]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
SCALARS: st.SearchStrategy[Scalar] = st.one_of(TEXTS, st.text(max_size=20), NUMBERS, st.booleans())
METADATA: st.SearchStrategy[Metadata] = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(SCALARS, st.lists(TEXTS | SCALARS, max_size=3)), max_size=4
)
COMPARISONS = st.one_of(
    st.builds(Comparison, st.sampled_from(["eq", "ne"]), st.sampled_from(KEYS), SCALARS, st.booleans()),
    st.builds(
        Comparison,
        st.sampled_from(["in", "nin"]),
        st.sampled_from(KEYS),
        st.lists(SCALARS, max_size=4),
        st.booleans(),
    ),
    st.builds(
        Comparison,
        st.sampled_from(["gt", "gte", "lt", "lte"]),
        st.sampled_from(KEYS),
        st.one_of(TEXTS, NUMBERS),
    ),
    st.builds(Comparison, st.just("prefix"), st.sampled_from(KEYS), TEXTS),
    st.builds(Exists, st.sampled_from(KEYS), st.booleans()),
)
FILTERS: st.SearchStrategy[Filter] = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds(Compound, st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)),
        st.builds(Not, inner),
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_index_answers_as_plain_python(data: st.DataObject) -> None:
    """Growing, sealed, built in any order, loaded and merged indexes agree with the meaning, filter by filter."""
    check_every_index(data)


@pytest.mark.torture
@settings(max_examples=5000, deadline=None)
@given(st.data())
def test_every_index_answers_for_long(data: st.DataObject) -> None:
    """The same with many more rows and filters."""
    check_every_index(data)


def check_every_index(data: st.DataObject) -> None:
    rows = data.draw(st.lists(METADATA, max_size=12))
    kept = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    cut = data.draw(st.integers(0, len(rows)))
    order = data.draw(st.permutations(range(len(rows))))
    left = [metadata for metadata, flag in zip(rows, kept, strict=True) if flag]
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        ways: list[tuple[FilterPart, list[Metadata]]] = [
            (grown(rows).view(len(rows)), rows),
            (grown(rows).view(cut), rows[:cut]),
            (sealed(rows), rows),
            (grown(rows).seal(cut), rows[:cut]),
            (built(rows, order), rows),
            (loaded(sealed(rows), Path(one)), rows),
            (merged(rows, kept, cut), left),
            (loaded(merged(rows, kept, cut), Path(other)), left),
        ]
        for condition in data.draw(st.lists(FILTERS, min_size=1, max_size=6)):
            for index, held in ways:
                assert list(index.match(condition)) == expected(held, condition)
        for index, held in ways:
            assert (index.size, frozenset(index.keys_near("", 1000))) == (len(held), keys_in(held))
            for key in KEYS:
                check_what_is_said_of(index, held, key)


def check_what_is_said_of(index: FilterPart, rows: Sequence[Metadata], key: str) -> None:
    """The kinds of its values, one value of each kind, and whether there are dates."""
    values = [value for metadata in rows for value in values_of(metadata, key)]
    columns = index.columns(key)
    assert set(columns) == {kind_of(value) for value in values}
    assert index.has_dates(key) == any(map(date, values))
    for kind, column in columns.items():
        assert column.example() in [value for value in values if kind_of(value) == kind]


NEIGHBOURS: list[Scalar] = [
    sign * number
    for sign in (1, -1)
    for number in (0, 0.0, 1, 1.0, 2**53 - 1, 2**53, 2.0**53, 2**53 + 1, 2**53 + 2, 2.0**53 + 2, 2**63 - 513)
]
NEIGHBOURS += [2**62 + at for at in range(-3, 4)] + [
    2.0**62,
    2**63 - 512,
    2**63 - 1,
    2.0**63,
    -(2**63),
    -(2.0**63),
]
NEIGHBOURS += [math.inf, -math.inf, True, False, "1", ""]


@pytest.mark.parametrize("bound", NEIGHBOURS)
def test_numbers_that_round_alike_stay_apart(bound: Scalar) -> None:
    """Every comparison of large integers with each other and with floats is exact, and kinds do not mix."""
    rows: list[Metadata] = [{"a": number} for number in NEIGHBOURS]
    everywhere = np.ones(len(rows), bool)
    indexes: list[FilterPart] = [grown(rows).view(len(rows)), sealed(rows)]
    indexes.append(SealedFilters.merged([(sealed(rows), everywhere)]))
    for operation in ("eq", "ne", "gt", "gte", "lt", "lte"):
        condition = Comparison(operation, "a", bound)
        for index in indexes:
            assert list(index.match(condition)) == expected(rows, condition), operation
    for index in indexes if kind_of(bound) == "number" else ():
        column = index.column("number", "a")
        assert column is not None
        assert list(column.between(bound, None)) == expected(rows, Comparison("gte", "a", bound))
        assert list(column.between(None, bound)) == expected(rows, Comparison("lt", "a", bound))


# --- sizes at which the layout changes --------------------------------------------------------------------------

ROWS = 70_000  # more than one roaring container


def big_world() -> list[Metadata]:
    """Values that half, a tenth, a hundredth and one of the rows have, a list, and rows without any."""
    rng = random.Random(5)
    return [
        {
            "half": rng.random() < 0.5,
            "tenth": rng.randrange(10),
            "hundredth": f"topic {rng.randrange(100)}",
            "own": row * 1.5 - 30_000,
            "url": f"https://example.org/pages/{row * 7919 % ROWS}",
            "day": f"2026-{row % 5 + 1:02d}-{row % 28 + 1:02d}" + ("T12:00:00Z" if row % 3 else ""),
            "tags": rng.sample(["red", "green", "blue", "rare"][: 3 + (row % 500 == 0)], rng.randrange(3)),
        }
        if row % 11
        else {}
        for row in range(ROWS)
    ]


BIG_FILTERS: list[Filter] = [
    Comparison("eq", "half", True),
    Comparison("ne", "half", True),
    Comparison("eq", "tenth", 3.0),
    Comparison("in", "tenth", [1, 2, 7, 11]),
    Comparison("gte", "tenth", 4),
    Comparison("lt", "tenth", 100),
    Comparison("eq", "hundredth", "topic 7"),
    Comparison("lte", "hundredth", "topic 50"),
    Comparison("gt", "own", 12.5),
    Comparison("lt", "own", -29_900),
    Comparison("eq", "own", 0),
    Comparison("eq", "url", "https://example.org/pages/123"),
    Comparison("gt", "url", "https://example.org/pages/5"),
    Comparison("eq", "tags", "green"),
    Comparison("gte", "tags", "r"),
    Comparison("nin", "tags", ["green", "rare"]),
    Comparison("prefix", "url", "https://example.org/pages/12"),
    Comparison("gte", "day", "2026-03-01"),
    Comparison("lt", "day", "2026-01-02T00:00:00+01:00"),
    Exists("day"),
    Not(Exists("tags")),
    Compound("and", [Comparison("eq", "half", False), Comparison("lt", "own", 0)]),
]


@pytest.mark.slow
def test_large_matches_are_exact(tmp_path: Path) -> None:
    """Values of half the rows and values of one row, alone and in ranges, in growing, loaded and merged indexes."""
    rows, everything = big_world(), GrowingFilters()
    for metadata in rows:
        everything.add(metadata)
    whole = everything.seal(ROWS)
    kept = np.random.default_rng(1).random(ROWS) < 0.8
    left = [metadata for metadata, flag in zip(rows, kept, strict=True) if flag]
    mapped = loaded(whole, tmp_path)
    indexes: list[tuple[FilterPart, list[Metadata]]] = [
        (everything.view(ROWS), rows),
        (mapped, rows),
        (merged(rows, kept.tolist(), 20_000), left),
        (SealedFilters.merged([(mapped, kept)]), left),
    ]
    for condition in BIG_FILTERS:
        matching = np.array([satisfies(metadata, condition) for metadata in rows])
        answers = {id(rows): np.flatnonzero(matching), id(left): np.flatnonzero(matching[kept])}
        for index, held in indexes:
            assert index.match(condition).to_array().tolist() == answers[id(held)].tolist()


def test_values_the_builder_forgot_are_joined_again() -> None:
    """A builder that meets more values than it remembers still gives each value all its rows."""
    values = REMEMBERED_MAX + 5_000
    builder = FiltersBuilder(4 * values)
    for row in range(2 * values):
        builder.add(np.array([row + 2 * values, row]), {"text": f"v{row % values}", "number": row % values})
    index = builder.finish()
    for value in (0, 4_999, 5_000, values - 1):
        assert list(index.match(Comparison("eq", "text", f"v{value}"))) == [
            value + lap * values for lap in range(4)
        ]
        assert list(index.match(Comparison("eq", "number", value))) == [
            value + lap * values for lap in range(4)
        ]
    assert len(index.match(Comparison("lt", "number", 100))) == 400


def test_a_builder_refuses_rows_it_has_no_place_for() -> None:
    """A row at or past the size is our bug, and does not vanish quietly."""
    with pytest.raises(AssertionError, match="row 3 of 3"):
        FiltersBuilder(3).add(np.array([1, 3]), {"a": 1})


# --- promises beside the answers --------------------------------------------------------------------------------


def test_a_match_belongs_to_its_caller(tmp_path: Path) -> None:
    """Changing a result changes no later one."""
    rows: list[Metadata] = [{"a": row % 2} for row in range(3000)]
    index = loaded(sealed(rows), tmp_path)
    for part in (index, grown(rows).view(3000)):
        part.match(Comparison("eq", "a", 1)).clear()
        assert len(part.match(Comparison("eq", "a", 1))) == 1500


def test_a_view_is_frozen() -> None:
    """Rows and keys added after a view was taken do not show in it."""
    growing = GrowingFilters()
    growing.add({"a": 1})
    before = growing.view(1)
    growing.add({"a": 1, "b": 2})
    assert (before.size, before.keys_near("", 9), list(before.match(Comparison("eq", "a", 1)))) == (
        1,
        ["a"],
        [0],
    )
    assert list(before.match(Comparison("ne", "b", 2))) == [0]
    after = growing.view(2)
    assert (after.keys_near("", 9), list(after.match(Comparison("eq", "b", 2)))) == (["a", "b"], [1])


def test_keys_are_known_once() -> None:
    """Those of many rows with keys of their own are in order, also one with values of two kinds, and are sorted again
    only if there are others: to look for one among them costs nothing."""
    growing = GrowingFilters()
    for row in range(200):
        growing.add({f"key{(row * 400 + at) * 7919 % 80_000}": at for at in range(400)})
    wanted = sorted(f"key{number}" for number in range(80_000))
    view = growing.view(200)
    assert view.names == wanted
    many = Compound("or", [Exists(f"key{number}") for number in range(64)])
    begun = time.thread_time()
    for _ in range(20):
        assert len(view.match(many)) > 0
        require_satisfiable(many, [view])
    assert (time.thread_time() - begun) / slowness() < 0.3
    growing.add({"key7": "text", "a": 1, "z": 2})
    assert growing.view(201).names == ["a", *wanted, "z"]


def test_an_object_may_hold_any_number_of_keys() -> None:
    """Whether a row has any of them is found in one step, by every index; rows that come later are not seen."""
    draw = random.Random(8)
    rows: list[Metadata] = [
        {"k": {f"a{draw.randrange(9)}": {f"b{draw.randrange(40)}": draw.choice([1, "x", True])}}, "kx": 1}
        if draw.random() < 0.7
        else {draw.choice(["k", "k-", "ka"]): 2}
        for _ in range(400)
    ]
    growing = grown(rows)
    view, merged = growing.view(300), sealed(rows[:300])
    for _ in range(20):
        growing.add({"k": {"later": 1}})
    for key in ("k", "k.a3", "k.a3.b1", "k.a3.b", "ka", "k-", "kx", "none", "k.a", "k."):
        held = {
            at
            for at, row in enumerate(rows[:300])
            for name, _ in leaves(row)
            if name == key or name.startswith(f"{key}.")
        }
        for index in (view, merged):
            assert set(index.match(Exists(key))) == held
            assert set(index.match(Exists(key, False))) == set(range(300)) - held
    many = GrowingFilters()
    for row in range(100):
        many.add({"k": {f"key{row * 400 + at}": at for at in range(400)}})
    for part in (many.view(100), many.seal(100)):
        begun = time.thread_time()
        require_satisfiable(Compound("or", [Exists("k")] * 64), [part])
        assert len(part.match(Compound("or", [Exists("k")] * 64))) == 100
        with pytest.raises(InvalidInput, match="holds objects; name what is in them"):
            require_satisfiable(Comparison("eq", "k", 1), [part])
        assert (time.thread_time() - begun) / slowness() < 1.0  # each key by itself takes half a minute


def test_views_share_their_keys() -> None:
    """Rows of 64 keys that no other has, and a view after each: twice the rows take twice the memory."""

    def bytes_of(rows: int) -> int:
        tracemalloc.start()
        growing, views = GrowingFilters(), []
        for row in range(rows):
            growing.add({f"{row}-{number}": number for number in range(64)})
            views.append(growing.view(row + 1))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return held

    assert bytes_of(400) < 3 * bytes_of(200)


def test_views_answer_while_rows_are_added() -> None:
    """Readers beside the writer get exactly the rows of their view, and so does one who seals."""
    growing, latest = GrowingFilters(), [0]
    failures: list[tuple[int, Filter]] = []
    conditions: list[Filter] = [
        Comparison("lt", "n", 50),
        Comparison("gte", "text", "t5"),
        Comparison("eq", "text", "t7"),
    ]
    rows: list[Metadata] = [
        {"n": row % 100, "text": f"t{row % 1000}", f"key{row // 100}": True} for row in range(10_000)
    ]
    answers = [expected(rows, condition) for condition in conditions]

    def read() -> None:
        size = 0
        while size < len(rows):
            size = latest[0]
            for part in (growing.view(size), growing.seal(size)):
                for condition, answer in zip(conditions, answers, strict=True):
                    if list(part.match(condition)) != answer[: bisect.bisect_left(answer, size)]:
                        failures.append((size, condition))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for metadata in rows:
        latest[0] = growing.add(metadata) + 1
    for reader in readers:
        reader.join()
    assert not failures


def test_files_are_few_and_named_by_us(tmp_path: Path) -> None:
    """Keys never become file names, however many there are."""
    loaded(sealed([{f"../{at}/key": at, "": str(at)} for at in range(50)]), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["directory.msgpack", *(f"{name}.npy" for name in ARRAYS)]
    )


def test_memory_is_counted_and_maps_are_not(tmp_path: Path) -> None:
    """A sealed index in memory knows its size; a loaded one holds none."""
    index = sealed([{"a": f"value {row}", "n": row} for row in range(1000)])
    assert index.bytes >= 1000 * (9 + 4 + 4 + 8 + 4 + 4)
    assert loaded(index, tmp_path).bytes == 0
    assert grown([{"n": row} for row in range(1000)]).view(1000).bytes >= 1000 * 18


def test_many_distinct_values_cost_few_bytes(tmp_path: Path) -> None:
    """On disk a distinct number costs 16 bytes, a string 12 and its text, a wide value a bit a row in steps of 8 kB."""
    rows: list[Metadata] = [
        {"n": row + 0.5, "s": f"{row:07d}", "half": row % 2 == 0} for row in range(20_000)
    ]
    loaded(sealed(rows), tmp_path)
    used = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert used <= 20_000 * (16 + 12 + 7 + 2 / 8) + 3 * 8192


def test_not_a_number_is_left_out() -> None:
    """NaN matches nothing, disturbs nothing, and no filter may ask for it."""
    rows: list[Metadata] = [{"a": 1}, {"a": math.nan}, {"a": 3}]
    for part in (grown(rows).view(3), sealed(rows)):
        assert list(part.match(Comparison("gt", "a", 0))) == [0, 2]
        assert list(part.match(Comparison("ne", "a", 1))) == [1, 2]
    with pytest.raises(InvalidInput, match="not a number"):
        parse_filter({"type": "eq", "key": "a", "value": math.nan}, conditions_max=1)


def test_half_a_surrogate_pair_matches_itself() -> None:
    """A string that is no valid UTF-8 neither fails nor matches another."""
    rows: list[Metadata] = [{"a": "\ud800"}, {"a": "\ud801"}, {"a": "\uffff"}]
    for part in (grown(rows).view(3), sealed(rows)):
        assert list(part.match(Comparison("eq", "a", "\ud800"))) == [0]
        assert list(part.match(Comparison("gt", "a", "\ud800"))) == [1, 2]


@pytest.mark.slow
def test_a_misspelt_key_among_many_costs_little() -> None:
    """Only the keys around it in the alphabet are compared, and the nearest of 40,000 is named."""
    growing = GrowingFilters()
    for row in range(100):
        growing.add({f"key{row * 400 + at:07d}x": 1 for at in range(400)})
    for part in (growing.view(100), growing.seal(100)):
        part.keys_near("first", 1)
        begun = time.thread_time()
        for key in ("kex0000001x", "key", "key00000011", "zebra", "k" * 8000):
            with pytest.raises(InvalidInput) as caught:
                require_satisfiable(Comparison("eq", key, 1), [part])
            if key == "kex0000001x":
                assert "did you mean 'key0000001x'" in caught.value.message
            if key == "key":
                require_satisfiable(Not(Exists("key0000001x")), [part])
                with pytest.raises(InvalidInput):
                    require_satisfiable(Exists(key), [part])
        assert (time.thread_time() - begun) / slowness() < 0.3  # comparing all keys takes seconds
        assert list(part.keys_below("key")) == []


def test_many_values_are_checked_against_columns_that_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dates among the strings of a few documents, thousands of values of all kinds, some of which look like dates,
    make no column be read again."""
    read: list[str] = []
    whole = GrowingFiltersView.column

    def column(view: GrowingFiltersView, kind: Kind, key: str) -> Any:
        read.append(key)
        return whole(view, kind, key)

    monkeypatch.setattr(GrowingFiltersView, "column", column)
    growing = GrowingFilters()
    for text in ("abc", "2026-01-05", "2026-99-99"):
        growing.add({"s": [text, 1, True]})
    kinds: list[Scalar] = ["abc", "2026-01-05", "2026-99-99", "2026", 7, True]
    counted = []
    for times in (1, 2000):
        read.clear()
        require_satisfiable(Comparison("nin", "s", kinds * times), [growing.view(2), growing.view(3)])
        counted.append(len(read))
    assert counted[0] == counted[1]


def test_only_large_columns_stay_prepared() -> None:
    """Documents may have any number of keys, and a filter may look at all of them."""
    growing = GrowingFilters()
    for row in range(KEPT_FROM):
        growing.add({"many": row, f"own{row % 100}": row})
    view = growing.view(KEPT_FROM)
    assert all(view.columns(name) for name in view.names)
    assert set(view._columns) == {("number", "many")}
    assert view.column("number", "many") is view.column("number", "many")
