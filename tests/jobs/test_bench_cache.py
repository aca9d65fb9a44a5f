"""`nearline bench cache`: the questions drawn, where measuring begins, and the arithmetic of its tables."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import msgspec
import pytest

from indexes.base.errors import InvalidInput
from jobs.benchmark.caches import OFF, ArmTurn, draw_questions, find_repeats, tables, window
from jobs.benchmark.callers import post
from jobs.benchmark.visit import CHECKED, NEAR, Visit, writes_of

QUESTIONS = [f"what is number {n}?" for n in range(1000)]


def test_few_questions_are_asked_often() -> None:
    """The most popular comes with probability 1 / H(1000) = .134, the next half as often; a seed repeats it."""
    asked = draw_questions(QUESTIONS, 20_000, zipf=1, reworded=0, seed=3)
    assert asked == draw_questions(QUESTIONS, 20_000, zipf=1, reworded=0, seed=3)
    assert asked != draw_questions(QUESTIONS, 20_000, zipf=1, reworded=0, seed=4)
    (_, first), (_, second) = Counter(asked).most_common(2)
    assert first / 20_000 == pytest.approx(0.134, rel=0.05)
    assert second / 20_000 == pytest.approx(0.067, rel=0.08)


def test_a_share_is_asked_in_other_words() -> None:
    """Which hold the question without its question mark."""
    asked = draw_questions(QUESTIONS, 20_000, zipf=1, reworded=0.1, seed=3)
    other = [one for one in asked if one not in set(QUESTIONS)]
    assert len(other) / 20_000 == pytest.approx(0.1, rel=0.1)
    assert all("what is number" in one and "?" not in one for one in other)


def test_measuring_begins_where_enough_came_before() -> None:
    """The first stretch of that length with that share; none is an error that names the option."""
    before = find_repeats(["a", "b", "a", "c", "a", "b", "a"])
    assert before == [False, False, True, False, True, True, True]
    assert window(before, 2, 0.5) == 1
    assert window(before, 3, 1) == 4
    with pytest.raises(InvalidInput) as refused:
        window(before, 4, 1)
    assert refused.value.param == "hit_rate"


def test_half_of_the_writes_are_new_and_a_tenth_deletes() -> None:
    """Those that replace name a document that is there."""
    bodies = [one.partition(b"\r\n\r\n")[2] for _, one in zip(range(100), writes_of(["one", "two"], 7))]
    decoded = [msgspec.json.decode(body) for body in bodies]
    ids = [one["documents"][0]["id"] for one in decoded if "documents" in one]
    assert sum("ids" in one for one in decoded) == 10
    assert sum(one.startswith("new-") for one in ids) == 50
    assert {int(one) for one in ids if one.isdigit()} <= set(range(7))


def turn(seconds: float, **took: list[float]) -> ArmTurn:
    named = {{"hit": f"hit, {NEAR}"}.get(name, name): times for name, times in took.items()}
    return ArmTurn(seconds, named, {"miss": [4.0]}, {"stale": 1.0, "written/s": 9.0})


def test_ways_of_running_are_compared_within_a_round() -> None:
    """Rates to caches off, hit rates to the same way without writes; stale answers of all rounds are added."""
    found = tables(
        {
            OFF: [turn(1, bypass=[5.0] * 10), turn(2, bypass=[5.0] * 10)],
            NEAR: [turn(0.5, hit=[1.0] * 8, miss=[5.0] * 2), turn(1, hit=[1.0] * 8, miss=[5.0] * 2)],
            f"{NEAR}, writes": [
                turn(1, hit=[1.0] * 6, miss=[5.0] * 4), turn(2, hit=[1.0] * 6, miss=[5.0] * 4),
            ],
        },
        clients=2,
    )  # fmt: skip
    rows, by_outcome, alone = found.values()
    off, near, writes = rows
    assert (off["x off"], near["x off"], writes["x off"]) == (1, 2, 1)
    assert (off["hit rate"], near["hit rate"], writes["hit rate"]) == (0, 0.8, 0.6)
    assert writes["of that without writes"] == 0.75
    assert writes["stale"] == 2
    assert [(row["outcome"], row["searches"], row["p50 ms"]) for row in by_outcome if row["caches"] == NEAR] == [
        (f"hit, {NEAR}", 16, 1), ("miss", 4, 5),
    ]  # fmt: skip
    assert alone[0]["p50 ms"] == 4


async def visited(cached: list[str], fresh: list[str], seqs: tuple[int, int]) -> Counter[str]:
    """What a visit finds of a service that answers from its cache with these documents, and past it with those."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.read(65_536)).partition(b"\r\n\r\n"):
            if not head[2]:
                break
            kept = msgspec.json.decode(head[2]).get("cache", False)
            hits = [{"document_id": one, "passage": 0} for one in (cached if kept else fresh)]
            receipt = {"cache": "hit" if kept else "bypass", "seq": seqs[0 if kept else 1]}
            body = msgspec.json.encode({"hits": hits, "receipt": receipt})
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        writes = itertools.repeat(post("/", b"{}"))
        async with Visit(url, cache=True, writes=writes, writes_s=50) as visit:
            await visit.ask(["what?"] * CHECKED * 2, clients=2)
    return visit.found


@pytest.mark.parametrize(
    ("fresh", "seqs", "checked", "stale"),
    [(["a", "b"], (3, 3), 2, 0), (["b", "a"], (3, 3), 2, 2), (["b"], (3, 4), 0, 0)],
)
def test_hits_beside_writes_are_compared_with_a_search(
    fresh: list[str], seqs: tuple[int, int], checked: int, stale: int
) -> None:
    """One in a hundred; another order is stale, unless something was written meanwhile."""
    found = asyncio.run(visited(["a", "b"], fresh, seqs))
    assert found == Counter({"checked": checked, "stale": stale, "errors": 0})
