"""Which queries run on the event loop's own thread: the rule by itself, then in the batcher with a fake encoder."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from indexes.base.errors import DeadlineExceeded, NotReady, Overloaded
from indexes.base.model import Floats
from retrieval.base.settings import Config, Models
from retrieval.embedding import alone
from retrieval.embedding.alone import BLOCKING_S_MAX, CROWD_S, LOOKOUT_EVERY, RUNS_SEEN_MIN, LoneQueries
from retrieval.embedding.batcher import QUERY_CHARS_MAX, Batcher
from retrieval.embedding.costs import CostModel
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import Kind
from retrieval.embedding.results import Embedded, Lane, Long, Observer, TooLong
from retrieval.embedding.tokens import Tokens

POISON = 666
LONG = "long " * 10  # more tokens than may block the loop, by the costs below


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Costs(CostModel):
    """A token takes 0.4 ms, so that ten may block the loop and eleven not; it only counts what it is taught."""

    def __init__(self, runs: int = RUNS_SEEN_MIN) -> None:
        super().__init__()
        self.base, self.per_token, self.per_square = 0.0, BLOCKING_S_MAX / 10, 0.0
        self.runs = runs

    def learn(self, texts: int, longest: int, seconds: float) -> None:
        self.runs += 1


# --- the rule ------------------------------------------------------------------------------------------------


def test_no_cost_is_believed_before_some_runs() -> None:
    """Nothing blocks the loop while the cost model has only its first guess to tell from."""
    costs = Costs(runs=RUNS_SEEN_MIN - 1)
    lone = LoneQueries(costs)
    assert not lone.may_block(1)
    costs.learn(1, 1, 0.001)
    assert lone.may_block(1)


def test_long_runs_do_not_block() -> None:
    """What the model expects to take longer than the bound does not block the loop, on a slow machine nothing."""
    costs = Costs()
    lone = LoneQueries(costs)
    assert lone.may_block(9)
    assert not lone.may_block(11)
    costs.base = BLOCKING_S_MAX
    assert not lone.may_block(1)


def test_a_crowd_is_remembered() -> None:
    """After two queries at once nothing blocks the loop until a quarter of a second has passed since the last."""
    clock = Clock()
    lone = LoneQueries(Costs(), clock)
    lone.crowd()
    clock.now += CROWD_S * 0.9
    lone.crowd()
    clock.now += CROWD_S * 0.9
    assert not lone.may_block(1)
    clock.now += CROWD_S * 0.2
    assert lone.may_block(1)


def test_lookouts_are_counted_out() -> None:
    """Every so many queries, none by chance, one looks out."""
    lone = LoneQueries(Costs())
    looked_out = [lone.looks_out() for _ in range(3 * LOOKOUT_EVERY)]
    assert looked_out == ([False] * (LOOKOUT_EVERY - 1) + [True]) * 3


# --- in the batcher ------------------------------------------------------------------------------------------


class FakeEncoder:
    """One token a word, and a text's vector is its word count. Runs on other threads wait for the gate."""

    dimensions = 2
    tokens_max = 32
    normalizes = False

    def __init__(self) -> None:
        self.loops = threading.get_ident()
        self.gate = threading.Event()
        self.gate.set()
        self.run_s = 0.0
        self.runs: list[tuple[str, list[int]]] = []  # where, and the tokens of each text

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[Tokens]:
        if "untokenisable" in texts:
            raise ValueError("no tokens")
        counts = [len(text.split()) for text in texts]
        return [
            Tokens([POISON if text == "poison" else 1] * min(count, 32), count > 32)
            for text, count in zip(texts, counts)
        ]

    def windows(self, text: str, kind: Kind) -> Iterator[Tokens]:
        return iter(self.tokenize([text], kind))

    def run(self, batch: Sequence[Tokens]) -> Floats:
        here = threading.get_ident() == self.loops
        self.runs.append(("loop" if here else "worker", [len(tokens) for tokens in batch]))
        if not here:
            assert self.gate.wait(10)
        time.sleep(self.run_s)
        if any(POISON in tokens.ids for tokens in batch):
            raise RuntimeError("poisoned")
        return np.array([[len(tokens), 0] for tokens in batch], dtype=np.float32)

    @property
    def where(self) -> list[str]:
        return [thread for thread, _ in self.runs]

    async def under_way(self, runs: int) -> None:
        while len(self.runs) < runs:  # noqa: ASYNC110 - runs begin on other threads
            await asyncio.sleep(0.002)


class Recorder(Observer):
    """What was told, without the seconds."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def tokenized(self, lane: Lane, texts: int, seconds: float) -> None:
        assert seconds >= 0
        self.told.append(("tokenized", lane, texts))

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        assert wait_s >= 0
        assert run_s >= 0
        self.told.append(("ran", lane, texts, tokens, padded_tokens))

    def queued(self, lane: Lane, tokens: int) -> None:
        self.told.append(("queued", lane, tokens))

    def left(self, lane: Lane, texts: int, reason: str) -> None:
        self.told.append((reason, lane, texts))


def with_batcher(
    scenario: Callable[[Batcher, FakeEncoder, Clock], Awaitable[None]],
    *,
    costs: CostModel | None = None,
    observe: Recorder | None = None,
) -> FakeEncoder:
    encoder, clock, costs = FakeEncoder(), Clock(), costs or Costs()

    async def play() -> None:
        batcher = Batcher(
            encoder,
            workers=2,
            query_run_s=0.1,
            bulk_run_s=0.1,
            batch_texts_max=8,
            queue_tokens_max=1000,
            costs=costs,
            lone=LoneQueries(costs, clock),
            observe=observe,
        )
        await batcher.start()
        try:
            async with asyncio.timeout(20):
                await scenario(batcher, encoder, clock)
        finally:
            encoder.gate.set()
            await batcher.close()

    asyncio.run(play())
    return encoder


async def query(
    batcher: Batcher, text: str, *, long: Long = "cut", deadline: float | None = None
) -> Embedded:
    return await batcher.embed([text], "query", lane="query", long=long, deadline=deadline)


def test_a_lone_query_runs_on_the_loop() -> None:
    """Queries of one caller, one after the other, run on the loop's thread, each with its own vector."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        for words in (1, 3, 2):
            embedded = await query(batcher, "w " * words)
            assert embedded.vectors.tolist() == [[words, 0]]
            assert (embedded.tokens, embedded.truncated, embedded.windows) == ([words], [False], [1])

    assert with_batcher(scenario).runs == [("loop", [1]), ("loop", [3]), ("loop", [2])]


def test_what_is_not_a_short_query_runs_on_workers() -> None:
    """A long query, windows, a text of the bulk lane, and any query that the model knows nothing of."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        await query(batcher, LONG)
        await batcher.embed(["w"], "query", long="windows")
        await batcher.embed(["w"], "query", lane="bulk")

    assert with_batcher(scenario).where == ["worker"] * 3
    untaught = with_batcher(lambda batcher, *_: query_once(batcher), costs=Costs(runs=0))
    assert untaught.where == ["worker"]


def test_long_texts_are_not_tokenised_on_the_loop() -> None:
    """However fast the model, a text of many characters takes the threads: reading it takes time too."""
    costs = Costs()
    costs.per_token = 1e-6

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        await query(batcher, "w" * QUERY_CHARS_MAX)
        await query(batcher, "w" * (QUERY_CHARS_MAX + 1))

    assert with_batcher(scenario, costs=costs).where == ["loop", "worker"]


async def query_once(batcher: Batcher) -> None:
    await query(batcher, "w")


def test_more_tokens_than_guessed() -> None:
    """A query that turns out longer once tokenised goes to a worker, and is tokenised once."""
    read: list[int] = []

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        tokenize = encoder.tokenize

        def counted(texts: Sequence[str], kind: Kind) -> list[Tokens]:
            read.append(threading.get_ident())
            return tokenize(texts, kind)

        encoder.tokenize = counted  # type: ignore[method-assign]
        assert (await query(batcher, "a " * 11)).tokens == [11]

    encoder = with_batcher(scenario)
    assert encoder.runs == [("worker", [11])]
    assert read == [encoder.loops]


def test_a_second_query_makes_a_crowd() -> None:
    """A query that comes during another's run is a second caller: for a while nobody runs on the loop."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, LONG))
        await encoder.under_way(1)
        second = asyncio.create_task(query(batcher, "w"))
        await asyncio.sleep(0)  # until it waits for the first one's run to end
        encoder.gate.set()
        await asyncio.gather(first, second)
        await query(batcher, "w")
        clock.now += CROWD_S * 0.9
        await query(batcher, "w")
        clock.now += CROWD_S * 0.2
        await query(batcher, "w")

    assert with_batcher(scenario).where == ["worker"] * 4 + ["loop"]


def test_queries_of_one_moment_are_a_crowd() -> None:
    """Of many queries that come at once not one blocks the loop; they share runs."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        await query(batcher, "w")
        encoder.gate.clear()
        asked = [asyncio.create_task(query(batcher, "w " * (1 + number % 3))) for number in range(20)]
        await encoder.under_way(1)
        encoder.gate.set()
        found = [embedded.vectors[0, 0] for embedded in await asyncio.gather(*asked)]
        assert found == [1 + number % 3 for number in range(20)]

    encoder = with_batcher(scenario)
    assert encoder.where == ["loop"] + ["worker"] * (len(encoder.runs) - 1)
    assert len(encoder.runs) < 12


def test_bulk_work_is_company_but_no_crowd() -> None:
    """While documents wait or run a query takes the threads; as soon as they are done it need not."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        encoder.gate.clear()
        documents = asyncio.create_task(batcher.embed(["w", "w w"], "document"))
        await encoder.under_way(1)
        asked = asyncio.create_task(query(batcher, "w"))
        await encoder.under_way(2)
        encoder.gate.set()
        await asyncio.gather(documents, asked)
        await query(batcher, "w")

    assert with_batcher(scenario).where == ["worker", "worker", "loop"]


def test_one_in_so_many_looks_out() -> None:
    """Of the queries of one caller one in LOOKOUT_EVERY runs on a worker: only there a second caller is met."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        for _ in range(2 * LOOKOUT_EVERY):
            await query(batcher, "w")

    assert with_batcher(scenario).where == (["loop"] * (LOOKOUT_EVERY - 1) + ["worker"]) * 2


def test_what_is_ready_goes_first() -> None:
    """What a caller has begun beside its query is under way before the loop is blocked."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        async def begun() -> int:
            return len(encoder.runs)

        beside = asyncio.ensure_future(begun())
        await query(batcher, "w")
        assert encoder.where == ["loop"]
        assert await beside == 0

    with_batcher(scenario)


def test_the_loop_turns_between_runs() -> None:
    """Who asks one query after the other, and waits for nothing else, does not keep the loop from other tasks."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        turns: list[int] = []

        async def other() -> None:
            while True:
                turns.append(len(encoder.runs))
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(5):
            await query(batcher, "w")
        task.cancel()
        assert set(range(5)) <= set(turns)

    assert with_batcher(scenario).where == ["loop"] * 5


@pytest.mark.parametrize(
    ("text", "long", "error", "runs"),
    [
        ("poison", "cut", RuntimeError, 1),
        ("untokenisable", "cut", ValueError, 0),
        ("w " * 33, "refuse", TooLong, 0),
    ],
)
def test_errors_are_those_of_the_threads(text: str, long: Long, error: type[Exception], runs: int) -> None:
    """A query that fails on the loop fails as on a worker, is told of as there, and the next one is answered."""

    def told(threads: bool) -> list[object]:
        costs = Costs(runs=0 if threads else RUNS_SEEN_MIN)
        costs.per_token = 1e-6
        recorder = Recorder()

        async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
            with pytest.raises(error):
                await query(batcher, text, long=long)
            await asyncio.sleep(0.01)
            assert (await query(batcher, "still alive")).tokens == [2]

        encoder = with_batcher(scenario, costs=costs, observe=recorder)
        assert encoder.where == ["worker" if threads else "loop"] * (runs + 1)
        return recorder.told

    assert told(threads=False) == told(threads=True)


def test_metrics_are_those_of_the_threads() -> None:
    """Observers hear of a run on the loop what they hear of one on a worker, and the cost model learns from it."""

    def told(costs: Costs) -> list[object]:
        recorder, before = Recorder(), costs.runs

        async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
            encoder.run_s = 0.002
            embedded = await query(batcher, "w w w")
            assert embedded.run_s >= 0.002
            assert embedded.tokenize_s >= 0
            assert embedded.queue_s >= 0
            await asyncio.sleep(0.01)

        with_batcher(scenario, costs=costs, observe=recorder)
        assert costs.runs == before + 1
        return recorder.told

    on_loop = told(Costs())
    assert on_loop == told(Costs(runs=0))
    assert on_loop == [
        ("queued", "query", 3),
        ("tokenized", "query", 1),
        ("queued", "query", 0),
        ("ran", "query", 1, 3, 3),
    ]


def test_a_deadline_that_passed_refuses() -> None:
    """Who comes after its deadline is refused without a run."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        with pytest.raises(Overloaded):
            await query(batcher, "w", deadline=asyncio.get_running_loop().time() - 1)

    assert with_batcher(scenario).runs == []


def test_a_run_beyond_the_deadline() -> None:
    """When a run on the loop ends after the deadline, its caller gets DeadlineExceeded, and nothing is left queued."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        encoder.run_s = 0.3
        with pytest.raises(DeadlineExceeded):
            await query(batcher, "w", deadline=asyncio.get_running_loop().time() + 0.2)
        encoder.run_s = 0.0
        await query(batcher, "w", deadline=asyncio.get_running_loop().time() + 60)

    assert with_batcher(scenario, observe=recorder).where == ["loop", "loop"]
    assert ("deadline", "query", 1) in recorder.told
    assert recorder.told.count(("ran", "query", 1, 1, 1)) == 2
    assert [told for told in recorder.told if told[0] == "queued"][-1] == ("queued", "query", 0)  # type: ignore[index]


def test_closing_refuses() -> None:
    """A query that has not run yet when the batcher is closed, or comes later, gets NotReady."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        asked = asyncio.create_task(query(batcher, "w"))
        closing = asyncio.create_task(batcher.close())
        with pytest.raises(NotReady):
            await asked
        await closing
        with pytest.raises(NotReady):
            await query(batcher, "w")

    assert with_batcher(scenario).runs == []


def test_a_cancelled_query_does_not_run() -> None:
    """A caller that leaves while others have their turn of the loop leaves nothing behind."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder, clock: Clock) -> None:
        asked = asyncio.create_task(query(batcher, "w"))
        asyncio.get_running_loop().call_soon(asked.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert encoder.runs == []
        await query(batcher, "w")

    assert with_batcher(scenario, observe=recorder).where == ["loop"]
    assert ("cancelled", "query", 1) in recorder.told


@pytest.mark.model
def test_the_same_vector_on_every_thread(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model gives a query the same vector, bit by bit, on the loop's thread and on a worker's."""
    threads: list[int] = []
    run = Encoder.run

    def watched(encoder: Encoder, batch: Sequence[Tokens]) -> Floats:
        threads.append(threading.get_ident())
        return run(encoder, batch)

    monkeypatch.setattr(Encoder, "run", watched)
    monkeypatch.setattr(alone, "BLOCKING_S_MAX", 60.0)  # on a slow machine too
    config = msgspec.structs.replace(Config(), models=Models(folder=str(model_folder.parent)))

    async def story() -> set[bytes]:
        embedders = Embedders(config, lambda name: Observer())
        try:
            embedder = await embedders.get(model_folder.name)
            threads.clear()
            return {
                (await embedder.embed(["which way?"], "query")).vectors.tobytes()
                for _ in range(LOOKOUT_EVERY + 2)
            }
        finally:
            await embedders.close()

    assert len(asyncio.run(story())) == 1
    assert len(threads) == LOOKOUT_EVERY + 2
    assert threading.get_ident() in threads
    assert len(set(threads)) > 1
