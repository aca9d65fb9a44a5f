"""The batcher, with a fake encoder whose runs the test starts and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from indexes.errors import DeadlineExceeded, NotReady, Overloaded
from retrieval.embedding.batcher import Batcher, Observer, Silent
from retrieval.embedding.encoder import Floats
from retrieval.embedding.lanes import fits
from retrieval.embedding.models import Kind
from retrieval.embedding.tokens import Tokens

POISON = 666


class FakeEncoder:
    """One token a word; a text's vector is its word count. Runs wait until the gate is open."""

    dimensions = 2
    tokens_max = 32

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.runs: list[list[int]] = []

    def tokenise(self, texts: Sequence[str], kind: Kind) -> list[Tokens]:
        if "untokenisable" in texts:
            raise ValueError("no tokens")
        return [Tokens([POISON if text == "poison" else 1] * len(text.split()), False) for text in texts]

    def run(self, batch: Sequence[Tokens]) -> Floats:
        self.runs.append([len(tokens) for tokens in batch])
        self.started.set()
        assert self.gate.wait(10)
        if any(POISON in tokens.ids for tokens in batch):
            raise RuntimeError("poisoned")
        return np.array([[len(tokens), 0] for tokens in batch], dtype=np.float32)

    async def busy(self) -> None:
        """Return once a run is under way."""
        assert await asyncio.to_thread(self.started.wait, 10)


class Recorder(Silent):
    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def queued(self, lane: Kind, tokens: int) -> None:
        self.calls.append((f"queued {lane}", tokens))

    def left(self, lane: Kind, texts: int, reason: str) -> None:
        self.calls.append((reason, texts))

    def ran(
        self, lane: Kind, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        assert wait_s >= 0
        assert run_s >= 0
        self.calls.append((f"ran {lane}", (texts, tokens, padded_tokens)))


def with_batcher(
    scenario: Callable[[Batcher, FakeEncoder], Awaitable[None]],
    *,
    observe: Observer | None = None,
    batch_texts_max: int = 8,
    queue_tokens_max: int = 1000,
    bulk_batch_tokens_max: int = 16,
) -> FakeEncoder:
    encoder = FakeEncoder()

    async def play() -> None:
        batcher = Batcher(
            encoder,
            batch_tokens_max=128,
            batch_texts_max=batch_texts_max,
            queue_tokens_max=queue_tokens_max,
            bulk_batch_tokens_max=bulk_batch_tokens_max,
            observe=observe,
        )
        await batcher.start()
        try:
            await asyncio.wait_for(scenario(batcher, encoder), 20)
        finally:
            encoder.gate.set()
            await batcher.close()

    asyncio.run(play())
    return encoder


async def settle() -> None:
    """Let every task that can go on do so, and the tokenising thread finish."""
    for _ in range(5):
        await asyncio.sleep(0.01)


def test_idle_starts_at_once() -> None:
    """An idle encoder starts with a single query: there is no window to wait for."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        began = time.perf_counter()
        vector = await batcher.embed_query("one two")
        assert vector.tolist() == [2, 0]
        assert time.perf_counter() - began < 1

    assert with_batcher(scenario).runs == [[2]]


def test_gathers_while_busy() -> None:
    """Queries that arrive during a run share the next one, each getting its own vector."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(batcher.embed_query("a"))
        await encoder.busy()
        later = [asyncio.create_task(batcher.embed_query("a " * size)) for size in (1, 2, 3, 2)]
        await settle()
        encoder.gate.set()
        await first
        assert [vector[0] for vector in await asyncio.gather(*later)] == [1, 2, 3, 2]

    assert with_batcher(scenario).runs == [[1], [1, 2, 3, 2]]


def test_runs_are_bounded_in_texts() -> None:
    """A run takes no more texts than allowed; the rest comes next, in order of arrival."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(batcher.embed_query("a"))
        await encoder.busy()
        later = [asyncio.create_task(batcher.embed_query("a")) for _ in range(5)]
        await settle()
        encoder.gate.set()
        await asyncio.gather(first, *later)

    assert [len(run) for run in with_batcher(scenario, batch_texts_max=2).runs] == [1, 2, 2, 1]


def test_query_overtakes_bulk() -> None:
    """A query that arrives during a bulk request runs before what is left of it."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        bulk = asyncio.create_task(batcher.embed_documents(["w " * 8] * 6))
        await encoder.busy()
        query = asyncio.create_task(batcher.embed_query("q"))
        await settle()
        encoder.gate.set()
        await query
        assert not bulk.done() or len(encoder.runs) == 4
        assert (await bulk)[:, 0].tolist() == [8] * 6

    assert with_batcher(scenario).runs == [[8, 8], [1], [8, 8], [8, 8]]


def test_bulk_requests_take_turns() -> None:
    """A small request is done after one run of a large one that came before it."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        large = asyncio.create_task(batcher.embed_documents(["w " * 16] * 5))
        await encoder.busy()
        small = asyncio.create_task(batcher.embed_documents(["w"]))
        await settle()
        encoder.gate.set()
        await small
        await large

    runs = with_batcher(scenario).runs
    assert runs.index([1]) <= 2


def test_small_bulk_requests_share_runs() -> None:
    """Single documents written at the same moment are embedded together."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(batcher.embed_query("q"))
        await encoder.busy()
        small = [asyncio.create_task(batcher.embed_documents(["w w"])) for _ in range(4)]
        await settle()
        encoder.gate.set()
        await asyncio.gather(first, *small)

    assert with_batcher(scenario).runs == [[1], [2, 2, 2, 2]]


def test_documents_keep_their_order() -> None:
    """Documents are bucketed by length for running, and come back in the order given."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        sizes = [5, 1, 16, 3, 9, 1, 12]
        vectors = await batcher.embed_documents(["w " * size for size in sizes])
        assert vectors[:, 0].tolist() == sizes
        assert all(max(run) * len(run) <= 16 for run in encoder.runs)
        assert (await batcher.embed_documents([])).shape == (0, 2)

    with_batcher(scenario)


def test_full_queue_refuses() -> None:
    """A full lane raises Overloaded with seconds to wait; documents never fill the lane of queries."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        bulk = asyncio.create_task(batcher.embed_documents(["w " * 10] * 20))
        await encoder.busy()
        await settle()
        with pytest.raises(Overloaded) as refusal:
            await batcher.embed_documents(["w " * 10])
        assert refusal.value.retry_after_s >= 1
        query = asyncio.create_task(batcher.embed_query("q"))
        await settle()
        encoder.gate.set()
        await query
        await bulk
        await batcher.embed_documents(["w"])

    with_batcher(scenario, observe=recorder, queue_tokens_max=100)
    assert ("refused", 1) in recorder.calls
    assert [tokens for call, tokens in recorder.calls if call == "queued document"][-1] == 0
    assert ("ran query", (1, 1, 1)) in recorder.calls


def test_cancelled_callers_never_run() -> None:
    """A caller cancelled while waiting leaves both queue and account; nothing is computed for it."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(batcher.embed_query("a"))
        await encoder.busy()
        query = asyncio.create_task(batcher.embed_query("b b b"))
        bulk = asyncio.create_task(batcher.embed_documents(["c c c c"] * 3))
        await settle()
        query.cancel()
        bulk.cancel()
        await settle()
        encoder.gate.set()
        await first
        await batcher.embed_query("d d")

    assert with_batcher(scenario, observe=recorder).runs == [[1], [2]]
    assert ("cancelled", 1) in recorder.calls
    assert ("cancelled", 3) in recorder.calls
    for lane in ("queued query", "queued document"):
        assert [tokens for call, tokens in recorder.calls if call == lane][-1] == 0


def test_deadline() -> None:
    """A query whose deadline passes while it waits gets DeadlineExceeded, and is not run."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(batcher.embed_query("a"))
        await encoder.busy()
        with pytest.raises(DeadlineExceeded):
            await batcher.embed_query("b b", asyncio.get_running_loop().time() + 0.02)
        encoder.gate.set()
        await first

    assert with_batcher(scenario).runs == [[1]]


@pytest.mark.parametrize(("text", "error"), [("poison", RuntimeError), ("untokenisable", ValueError)])
def test_bad_text_fails_alone(text: str, error: type[Exception]) -> None:
    """When a shared run fails, only the caller whose text caused it sees the error."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(batcher.embed_query("a"))
        await encoder.busy()
        tasks = [asyncio.create_task(batcher.embed_query(each)) for each in ("b b", text, "c")]
        await settle()
        encoder.gate.set()
        await first
        left, bad, right = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(left, np.ndarray)
        assert isinstance(right, np.ndarray)
        assert isinstance(bad, error)
        with pytest.raises(error):
            await batcher.embed_documents(["fine", text])
        assert (await batcher.embed_query("still alive")).tolist() == [2, 0]

    with_batcher(scenario)


def test_loop_goes_on() -> None:
    """The event loop keeps ticking while a run and its tokenising take their time."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        waiting = asyncio.create_task(batcher.embed_documents(["w"] * 3))
        await encoder.busy()
        began, ticks = time.perf_counter(), 0
        while time.perf_counter() - began < 0.1:
            await asyncio.sleep(0.005)
            ticks += 1
        assert ticks >= 5
        encoder.gate.set()
        await waiting

    with_batcher(scenario)


def test_close_refuses_who_waits() -> None:
    """Closing ends the run under way, refuses who waits with NotReady, and everyone after; twice is no error."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        running = asyncio.create_task(batcher.embed_query("a"))
        await encoder.busy()
        waiting = asyncio.create_task(batcher.embed_query("b"))
        await settle()
        closing = asyncio.create_task(batcher.close())
        await settle()
        encoder.gate.set()
        await closing
        for task in (running, waiting):
            with pytest.raises(NotReady):
                await task
        with pytest.raises(NotReady):
            await batcher.embed_query("c")
        await batcher.close()

    assert with_batcher(scenario).runs == [[1]]


def test_sharing_is_not_mostly_padding() -> None:
    """Texts of very different length do not share a run, short ones always may."""
    assert fits([10, 12, 9], 128)
    assert fits([1, 30], 128)
    assert not fits([4, 4, 4, 256], 4096)
    assert not fits([100, 100], 128)
    assert fits([500], 128), "a text over the bound runs alone"
