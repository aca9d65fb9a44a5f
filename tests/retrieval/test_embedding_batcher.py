"""The batcher, with a fake encoder whose runs the test starts and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import numpy as np
import pytest

from indexes.base.errors import DeadlineExceeded, NotReady, Overloaded, TooLarge
from indexes.base.model import Floats
from retrieval.embedding import lanes
from retrieval.embedding.batcher import Batcher
from retrieval.embedding.costs import CostModel
from retrieval.embedding.lanes import EmbedJob, fits
from retrieval.embedding.models import Kind
from retrieval.embedding.results import EmbeddedTexts, Lane, Observer, TooLong
from retrieval.embedding.tokens import Tokens

POISON = 666


class FakeEncoder:
    """One token a word; a text's vector is its word count. Runs wait until the gate is open, and so does reading in
    windows at a gate of its own."""

    dimensions = 2
    tokens_max = 32
    normalizes = False

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reading = threading.Event()
        self.reading.set()
        self.runs: list[list[int]] = []
        self.read: list[str] = []  # in windows

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[Tokens]:
        if "untokenisable" in texts:
            raise ValueError("no tokens")
        return [self._tokens(text) for text in texts]

    def _tokens(self, text: str) -> Tokens:
        words = len(text.split())
        return Tokens(
            [POISON if text == "poison" else 1] * min(words, self.tokens_max), words > self.tokens_max
        )

    def windows(self, text: str, kind: Kind) -> Iterator[Tokens]:
        self.read.append(text)
        assert self.reading.wait(10)
        words = text.split()
        yield from self.tokenize([" ".join(words[at : at + 32]) for at in range(0, len(words), 32)], kind)

    def run(self, batch: Sequence[Tokens]) -> Floats:
        self.runs.append([len(tokens) for tokens in batch])
        assert self.gate.wait(10)
        if any(POISON in tokens.ids for tokens in batch):
            raise RuntimeError("poisoned")
        return np.array([[len(tokens), 0] for tokens in batch], dtype=np.float32)

    async def busy(self, runs: int = 1) -> None:
        """Return once so many runs are under way, or were."""
        while len(self.runs) < runs:  # noqa: ASYNC110 - runs begin on other threads
            await asyncio.sleep(0.002)


class TokenCosts(CostModel):
    """A padded token takes a millisecond, and nothing else counts; it does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.per_token, self.per_square = 0.0, 0.001, 0.0

    def learn(self, texts: int, longest: int, seconds: float) -> None:
        self.runs += 1


class Recorder(Observer):
    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def queued(self, lane: Lane, tokens: int) -> None:
        self.calls.append((f"queued {lane}", tokens))

    def left(self, lane: Lane, texts: int, reason: str) -> None:
        self.calls.append((reason, texts))

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
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
    workers: int = 1,
    costs: CostModel | None = None,
    query_wait_s_max: float = float("inf"),
    large_wait_s_max: float = float("inf"),
) -> FakeEncoder:
    encoder = FakeEncoder()

    async def play() -> None:
        batcher = Batcher(
            encoder,
            workers=workers,
            query_run_s=0.128,
            bulk_run_s=0.016,
            batch_texts_max=batch_texts_max,
            queue_tokens_max=queue_tokens_max,
            query_wait_s_max=query_wait_s_max,
            large_wait_s_max=large_wait_s_max,
            costs=costs or TokenCosts(),
            observe=observe,
        )
        await batcher.start()
        try:
            await asyncio.wait_for(scenario(batcher, encoder), 20)
        finally:
            encoder.gate.set()
            encoder.reading.set()
            await batcher.close()

    asyncio.run(play())
    return encoder


async def query(batcher: Batcher, text: str, deadline: float | None = None) -> Floats:
    embedded = await batcher.embed([text], "query", lane="query", deadline=deadline)
    vector: Floats = embedded.vectors[0]
    return vector


async def documents(batcher: Batcher, texts: list[str]) -> Floats:
    return (await batcher.embed(texts, "document", lane="bulk")).vectors


async def settle() -> None:
    """Let every task that can go on do so, and the tokenising thread finish."""
    for _ in range(5):
        await asyncio.sleep(0.01)


def test_idle_starts_at_once() -> None:
    """An idle encoder starts with a single query: there is no window to wait for."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        began = time.perf_counter()
        vector = await query(batcher, "one two")
        assert vector.tolist() == [2, 0]
        assert time.perf_counter() - began < 1

    assert with_batcher(scenario).runs == [[2]]


def test_gathers_while_busy() -> None:
    """Queries that arrive during a run share the next one, each getting its own vector."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        later = [asyncio.create_task(query(batcher, "a " * size)) for size in (1, 2, 3, 2)]
        await settle()
        encoder.gate.set()
        await first
        assert [vector[0] for vector in await asyncio.gather(*later)] == [1, 2, 3, 2]

    assert with_batcher(scenario).runs == [[1], [1, 2, 3, 2]]


def test_runs_are_bounded_in_texts() -> None:
    """A run takes no more texts than allowed; the rest comes next, in order of arrival."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        later = [asyncio.create_task(query(batcher, "a")) for _ in range(5)]
        await settle()
        encoder.gate.set()
        await asyncio.gather(first, *later)

    assert [len(run) for run in with_batcher(scenario, batch_texts_max=2).runs] == [1, 2, 2, 1]


def test_query_overtakes_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that arrives during a bulk request runs before what is left of it."""
    monkeypatch.setattr(lanes, "BULK_WAITS_S", 60)  # a slow machine must not give bulk work its turn

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        bulk = asyncio.create_task(documents(batcher, ["w " * 8] * 6))
        await encoder.busy()
        asked = asyncio.create_task(query(batcher, "q"))
        await settle()
        encoder.gate.set()
        await asked
        assert not bulk.done() or len(encoder.runs) == 4
        assert (await bulk)[:, 0].tolist() == [8] * 6

    assert with_batcher(scenario).runs == [[8, 8], [1], [8, 8], [8, 8]]


def test_bulk_requests_take_turns() -> None:
    """A small request is done after one run of a large one that came before it."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        large = asyncio.create_task(documents(batcher, ["w " * 16] * 5))
        await encoder.busy()
        small = asyncio.create_task(documents(batcher, ["w"]))
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
        first = asyncio.create_task(query(batcher, "q"))
        await encoder.busy()
        small = [asyncio.create_task(documents(batcher, ["w w"])) for _ in range(4)]
        await settle()
        encoder.gate.set()
        await asyncio.gather(first, *small)

    assert with_batcher(scenario).runs == [[1], [2, 2, 2, 2]]


def test_documents_keep_their_order() -> None:
    """Documents are bucketed by length for running, and come back in the order given."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        sizes = [5, 1, 16, 3, 9, 1, 12]
        vectors = await documents(batcher, ["w " * size for size in sizes])
        assert vectors[:, 0].tolist() == sizes
        assert all(max(run) * len(run) <= 16 for run in encoder.runs)
        assert (await documents(batcher, [])).shape == (0, 2)

    with_batcher(scenario)


def test_full_queue_refuses() -> None:
    """A full lane raises Overloaded with seconds to wait; documents never fill the lane of queries."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        bulk = [asyncio.create_task(documents(batcher, ["w " * 10] * 2)) for _ in range(4)]
        await encoder.busy()
        await settle()
        with pytest.raises(Overloaded, match="80 tokens wait to be embedded and about 8 more") as refusal:
            await documents(batcher, ["w " * 10])
        assert refusal.value.retry_after_s >= 1
        asked = asyncio.create_task(query(batcher, "q"))
        await settle()
        encoder.gate.set()
        await asked
        await asyncio.gather(*bulk)
        await documents(batcher, ["w"])

    with_batcher(scenario, observe=recorder, queue_tokens_max=100)
    assert ("refused", 1) in recorder.calls
    assert [tokens for call, tokens in recorder.calls if call == "queued bulk"][-1] == 0
    assert ("ran query", (1, 1, 1)) in recorder.calls


def test_a_request_larger_than_the_queue() -> None:
    """It is embedded in parts: vectors in order, no more than a part in the queue, and room for others beside it."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        large = asyncio.create_task(documents(batcher, ["w " * (1 + at % 10) for at in range(60)]))
        await encoder.busy()
        await settle()
        other = asyncio.create_task(documents(batcher, ["w " * 10] * 2))
        await settle()
        encoder.gate.set()
        assert (await large)[:, 0].tolist() == [1 + at % 10 for at in range(60)]
        await other

    with_batcher(scenario, observe=recorder, queue_tokens_max=100)
    assert max(int(str(tokens)) for call, tokens in recorder.calls if call == "queued bulk") <= 75


def test_large_requests_take_turns() -> None:
    """The first is done before the second begins; one that was cancelled while it waited is not waited for."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        ended: list[str] = []
        large = {
            name: asyncio.create_task(documents(batcher, [f"{name} " * 10] * 40), name=name)
            for name in ("first", "gone", "second")
        }
        for task in large.values():
            task.add_done_callback(lambda task: ended.append(task.get_name()))
        await encoder.busy()
        large["gone"].cancel()
        encoder.gate.set()
        await asyncio.gather(*large.values(), return_exceptions=True)
        assert ended == ["gone", "first", "second"]

    with_batcher(scenario, queue_tokens_max=100)


def test_large_requests_that_would_wait_too_long_are_refused() -> None:
    """By the foretold time of those before them; a small one is taken, and so is a large one once they are done."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(documents(batcher, ["w " * 10] * 40))
        await encoder.busy()
        with pytest.raises(Overloaded, match="other large requests would delay this one") as refusal:
            await documents(batcher, ["w " * 10] * 40)
        assert refusal.value.retry_after_s >= 1
        small = asyncio.create_task(documents(batcher, ["w"]))
        await settle()
        encoder.gate.set()
        await asyncio.gather(first, small)
        await documents(batcher, ["w " * 10] * 40)

    with_batcher(scenario, queue_tokens_max=100, large_wait_s_max=0.0001)


def test_the_last_of_the_bulk_queue_is_for_small_requests() -> None:
    """Those of like size fill three quarters of it; a line is taken still, and refused when the rest is full, too."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        bulk = [asyncio.create_task(documents(batcher, ["w " * 30] * 7)) for _ in range(4)]
        await encoder.busy()
        await settle()
        with pytest.raises(Overloaded, match="at most 960 may wait"):
            await documents(batcher, ["w " * 30] * 7)
        small = [asyncio.create_task(documents(batcher, ["w w"])) for _ in range(200)]
        await settle()
        with pytest.raises(Overloaded, match="at most 1280 may wait"):
            await asyncio.gather(*small)
        encoder.gate.set()
        await asyncio.gather(*bulk)

    with_batcher(scenario, queue_tokens_max=1280)


async def order_of_ends(tasks: dict[str, asyncio.Task[EmbeddedTexts]]) -> list[str]:
    ended: list[str] = []
    for name, task in tasks.items():
        task.add_done_callback(lambda _, name=name: ended.append(name))  # type: ignore[misc]
    await asyncio.gather(*tasks.values())
    return ended


def test_a_request_passes_much_larger_ones() -> None:
    """Of one caller, requests of like size are done one after the other; a smaller one takes turns with them, a part
    each, and is done first."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        sizes = {"first": 400, "second": 400, "smaller": 10}
        tasks = {
            name: asyncio.create_task(batcher.embed(["w " * 10] * texts, "document"))
            for name, texts in sizes.items()
        }
        await encoder.busy()
        encoder.gate.set()
        assert await order_of_ends(tasks) == ["smaller", "first", "second"]

    with_batcher(scenario, queue_tokens_max=100)


def test_callers_share_the_encoder() -> None:
    """One that comes behind another's ten large requests is done when it has had as many parts as they together."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        tasks = {
            f"{caller}{number}": asyncio.create_task(
                batcher.embed(["w " * 10] * 40, "document", caller=caller)
            )
            for caller, many in (("greedy", 10), ("other", 1))
            for number in range(many)
        }
        await encoder.busy()
        encoder.gate.set()
        assert (await order_of_ends(tasks)).index("other0") <= 1

    with_batcher(scenario, queue_tokens_max=100)


def test_a_line_waits_for_a_run_of_each_caller() -> None:
    """However many requests others have in the lane, and however long: ten of a caller, and one large one in parts."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        large = [
            asyncio.create_task(batcher.embed(["w " * 16] * 60, "document", caller=caller))
            for caller in ("one", "two", "three")
        ]
        many = [
            asyncio.create_task(batcher.embed(["w " * 16] * 2, "document", caller="four")) for _ in range(10)
        ]
        await encoder.busy()
        await settle()
        small = asyncio.create_task(batcher.embed(["w w"], "document", lane="bulk", caller="five"))
        await settle()
        encoder.gate.set()
        await small
        assert encoder.runs.index([2]) <= 5  # the run under way, and at most one of each other caller
        await asyncio.gather(*large, *many)

    with_batcher(scenario, queue_tokens_max=4000)


def test_progress_is_told_run_by_run() -> None:
    """As the share of characters that is done, rising to 1; over the parts of a large request, and over windows."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        for texts, long in ((["w " * 10] * 40, "cut"), (["w " * 80, "w"], "windows")):
            told: list[float] = []
            await batcher.embed(texts, "document", long=long, progress=told.append)  # type: ignore[arg-type]
            assert told == sorted(told)
            assert len(told) > 2
            assert told[0] < 0.6
            assert told[-1] == pytest.approx(1)

    with_batcher(scenario, queue_tokens_max=200)


def test_texts_are_numbered_over_all_parts() -> None:
    """A text that may not be cut is named by its place in the request, in whichever part it comes."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        texts = ["w"] * 40 + ["w " * 40]
        with pytest.raises(TooLong, match="text 40 is longer"):
            await batcher.embed(texts, "document", long="refuse")

    with_batcher(scenario, queue_tokens_max=100)


def test_cancelled_callers_never_run() -> None:
    """A caller cancelled while waiting leaves both queue and account; nothing is computed for it."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        asked = asyncio.create_task(query(batcher, "b b b"))
        bulk = asyncio.create_task(documents(batcher, ["c c c c"] * 3))
        await settle()
        asked.cancel()
        bulk.cancel()
        await settle()
        encoder.gate.set()
        await first
        await query(batcher, "d d")

    assert with_batcher(scenario, observe=recorder).runs == [[1], [2]]
    assert ("cancelled", 1) in recorder.calls
    assert ("cancelled", 3) in recorder.calls
    for lane in ("queued query", "queued bulk"):
        assert [tokens for call, tokens in recorder.calls if call == lane][-1] == 0


def test_deadline() -> None:
    """A query whose deadline passes while it waits gets DeadlineExceeded, and is not run."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        with pytest.raises(DeadlineExceeded):
            await query(batcher, "b b", asyncio.get_running_loop().time() + 0.02)
        encoder.gate.set()
        await first

    assert with_batcher(scenario).runs == [[1]]


@pytest.mark.parametrize(("text", "error"), [("poison", RuntimeError), ("untokenisable", ValueError)])
def test_bad_text_fails_alone(text: str, error: type[Exception]) -> None:
    """When a shared run fails, only the caller whose text caused it sees the error."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        tasks = [asyncio.create_task(query(batcher, each)) for each in ("b b", text, "c")]
        await settle()
        encoder.gate.set()
        await first
        left, bad, right = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(left, np.ndarray)
        assert isinstance(right, np.ndarray)
        assert isinstance(bad, error)
        with pytest.raises(error):
            await documents(batcher, ["fine", text])
        assert (await query(batcher, "still alive")).tolist() == [2, 0]

    with_batcher(scenario)


def test_loop_goes_on() -> None:
    """The event loop keeps ticking while a run and its tokenising take their time."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        waiting = asyncio.create_task(documents(batcher, ["w"] * 3))
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
        running = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        waiting = asyncio.create_task(query(batcher, "b"))
        await settle()
        closing = asyncio.create_task(batcher.close())
        await settle()
        encoder.gate.set()
        await closing
        for task in (running, waiting):
            with pytest.raises(NotReady):
                await task
        with pytest.raises(NotReady):
            await query(batcher, "c")
        await batcher.close()

    assert with_batcher(scenario).runs == [[1]]


def test_sharing_is_not_mostly_padding() -> None:
    """Texts of very different length do not share a run, short ones always may."""
    assert fits([10, 12, 9], within(128))
    assert fits([1, 30], within(128))
    assert not fits([4, 4, 4, 256], within(4096))
    assert not fits([100, 100], within(128))
    assert fits([500], within(128)), "a text over the bound runs alone"


def within(tokens_max: int) -> Callable[[int, int], bool]:
    return lambda texts, longest: texts * longest <= tokens_max


def test_query_does_not_wait_for_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """While queries come, one of two workers is kept free of bulk runs: a query starts beside the one under way."""
    monkeypatch.setattr(lanes, "QUERIES_LATELY_S", 60)

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        await query(batcher, "first")
        encoder.gate.clear()
        bulk = asyncio.create_task(documents(batcher, ["w " * 16] * 4))
        await encoder.busy(2)
        await settle()
        assert encoder.runs == [[1], [16]], "the other worker must not have taken the second bulk run"
        asked = asyncio.create_task(query(batcher, "q q"))
        await encoder.busy(3)
        assert encoder.runs[2] == [2]
        encoder.gate.set()
        await asyncio.gather(asked, bulk)

    with_batcher(scenario, workers=2)


def test_bulk_alone_has_all_workers() -> None:
    """With no query about, bulk runs go side by side."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        bulk = asyncio.create_task(documents(batcher, ["w " * 16] * 4))
        await encoder.busy(2)
        encoder.gate.set()
        await bulk

    with_batcher(scenario, workers=2)


def test_short_single_texts_overtake() -> None:
    """A caller who names no lane gets the query lane for one short text, and the bulk lane for anything else."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        await batcher.embed(["one"], "document")
        await batcher.embed(["one", "two"], "query")
        await batcher.embed(["long " * 300], "query")

    with_batcher(scenario, observe=recorder)
    assert [call for call, _ in recorder.calls if call.startswith("ran")] == [
        "ran query",
        "ran bulk",
        "ran bulk",
    ]


def test_what_was_read_is_told() -> None:
    """The answer says how many tokens of each text were read, and whether its end was left out."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        embedded = await batcher.embed(["w " * 3, "w " * 40], "document")
        assert embedded.tokens == [3, 32]
        assert embedded.truncated == [False, True]
        assert embedded.windows == [1, 1]
        assert embedded.run_s >= 0
        assert (await batcher.embed(["w " * 40], "document", lane="query")).truncated == [True]

    with_batcher(scenario)


def test_several_texts_are_no_query() -> None:
    """They would wait for ever in the lane of single texts."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        with pytest.raises(ValueError, match="one text at a time"):
            await batcher.embed(["w", "w"], "query", lane="query")

    with_batcher(scenario)


def test_long_texts_refused_when_asked() -> None:
    """With `refuse` the first text that does not fit is named, and nothing is computed."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        with pytest.raises(TooLong, match="text 1 is longer than the 32 tokens") as caught:
            await batcher.embed(["fits", "w " * 33], "document", long="refuse")
        assert caught.value.tokens_max == 32
        assert (await batcher.embed(["w " * 32], "document", long="refuse")).truncated == [False]

    assert with_batcher(scenario).runs == [[32]]


def test_texts_that_must_not_be_cut_overtake_too() -> None:
    """A single short text with `refuse` is a query; one that does not fit is refused there, and nobody beside it."""
    recorder = Recorder()

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        texts = ["w w", "w " * 33, "w w w"]
        tasks = [asyncio.create_task(batcher.embed([text], "document", long="refuse")) for text in texts]
        await settle()
        encoder.gate.set()
        await first
        left, refused, right = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(left, EmbeddedTexts)
        assert isinstance(right, EmbeddedTexts)
        assert isinstance(refused, TooLong)
        assert refused.message == "text 0 is longer than the 32 tokens the model reads"

    assert with_batcher(scenario, observe=recorder).runs == [[1], [2, 3]]
    assert [call for call, _ in recorder.calls if call.startswith("ran")] == ["ran query", "ran query"]
    assert [tokens for call, tokens in recorder.calls if call == "queued query"][-1] == 0


def test_windows_are_averaged_by_tokens() -> None:
    """With `windows` all of a text counts: its vector is the mean of its pieces', weighted by their tokens."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        embedded = await batcher.embed(["w " * 48, "w w"], "document", long="windows")
        assert embedded.windows == [2, 1]
        assert embedded.tokens == [48, 2]
        assert embedded.truncated == [False, False]
        assert embedded.vectors[:, 0].tolist() == pytest.approx([(32 * 32 + 16 * 16) / 48, 2])

    with_batcher(scenario)


def test_only_windows_are_joined_and_not_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of thousands of windows hold up nobody; texts of one piece, a query above all, wait for no thread."""
    threads: list[threading.Thread] = []
    result = EmbedJob.result

    def watched(job: EmbedJob) -> EmbeddedTexts:
        threads.append(threading.current_thread())
        return result(job)

    monkeypatch.setattr(EmbedJob, "result", watched)

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        here = threading.current_thread()
        await query(batcher, "q")
        await batcher.embed(["w w", "w"], "document", long="windows")
        assert threads == [here, here]
        await batcher.embed(["w " * 33, "w"], "document", long="windows")
        assert threads[2] is not here

    with_batcher(scenario)


def test_too_much_to_read_in_windows() -> None:
    """More than may wait is refused with `windows` even by an idle batcher, unread; cut, the same texts are read."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        texts = ["w " * 100, "w " * 100]
        with pytest.raises(TooLarge, match="may hold 100"):
            await batcher.embed(texts, "document", long="windows")
        assert not encoder.read
        assert len((await batcher.embed(texts, "document")).vectors) == 2
        assert (await batcher.embed(texts[:1], "document", long="windows")).windows == [4]

    with_batcher(scenario, queue_tokens_max=100)


def test_reading_in_windows_ends_with_its_caller() -> None:
    """Texts that come after the one being read when the caller leaves are not read."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.reading.clear()
        asking = asyncio.create_task(batcher.embed(["first", "second"], "document", long="windows"))
        while not encoder.read:  # noqa: ASYNC110 - it is read on another thread
            await asyncio.sleep(0.002)
        asking.cancel()
        await settle()
        encoder.reading.set()
        await documents(batcher, ["behind it", "in the one thread that tokenises"])
        assert encoder.read == ["first"]

    with_batcher(scenario)


def test_a_long_text_is_read_in_turns() -> None:
    """Other requests are tokenised between two parts of a text, and the rest is not read once its caller has left."""
    given = 0

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        def endless(text: str, kind: Kind) -> Iterator[Tokens]:
            nonlocal given
            while True:
                given += 1
                yield Tokens([1], False)

        encoder.windows = endless  # type: ignore[method-assign]
        asking = asyncio.create_task(batcher.embed(["endless"], "document", long="windows"))
        while not given:  # noqa: ASYNC110 - it is read on another thread
            await asyncio.sleep(0.002)
        await documents(batcher, ["beside it", "in the one thread that tokenises"])
        asking.cancel()
        await documents(batcher, ["behind", "it"])
        read = given
        await documents(batcher, ["and", "later"])
        assert given == read

    with_batcher(scenario)


def test_windows_are_foretold_as_pieces() -> None:
    """While a long text is not tokenised yet, it counts as pieces the model can read: their squares, not its own."""
    costs = TokenCosts()
    costs.per_token, costs.per_square = 0.0, 0.01

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.reading.clear()
        long = asyncio.create_task(batcher.embed(["w " * 150], "document", long="windows"))
        await settle()
        # 102 tokens are foretold: 104 s as one text, 31 s as pieces of up to 32.
        deadline = asyncio.get_running_loop().time() + 60
        waiting = asyncio.create_task(batcher.embed(["w", "w"], "document", deadline=deadline))
        await settle()
        encoder.reading.set()
        assert (await long).windows == [5]
        assert len((await waiting).vectors) == 2

    with_batcher(scenario, costs=costs)


def test_deadline_that_cannot_be_met() -> None:
    """Who could not be answered in time is refused at once instead of waiting in vain."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        waiting = [asyncio.create_task(query(batcher, "w " * 30)) for _ in range(20)]
        await settle()
        with pytest.raises(Overloaded, match="deadline"):
            await query(batcher, "b", asyncio.get_running_loop().time() + 0.05)
        encoder.gate.set()
        await asyncio.gather(first, *waiting)

    with_batcher(scenario)


def test_queries_are_refused_by_the_time_they_would_wait() -> None:
    """A query before which others take more than the allowed 0.05 s is refused at once, and told when they are done."""

    async def scenario(batcher: Batcher, encoder: FakeEncoder) -> None:
        encoder.gate.clear()
        first = asyncio.create_task(query(batcher, "a"))
        await encoder.busy()
        waiting = [asyncio.create_task(query(batcher, "w " * 30)) for _ in range(20)]
        await settle()
        accepted = [task for task in waiting if not task.done()]
        with pytest.raises(Overloaded, match="the queries that wait already") as refused:
            await query(batcher, "b")
        assert refused.value.retry_after_s >= 1
        assert 0 < len(accepted) < len(waiting)
        for task in waiting:
            assert not task.done() or isinstance(task.exception(), Overloaded)
        encoder.gate.set()
        await asyncio.gather(first, *accepted)

    with_batcher(scenario, query_wait_s_max=0.05)
