"""What a search process does: it answers the searches that come over its socket, one after the other, on one thread.

Queries that wait at the same moment are embedded in one run of the model. Collections are opened, and their models
loaded, on a thread of their own, so that searches of the others go on. Between the steps of a search it looks for
callers that have left. The process ends when its socket does, which is when the service ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import queue
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from indexes.base.errors import DeadlineExceeded, InvalidInput, NearlineError, NotFound
from indexes.base.model import Floats, Spared
from indexes.base.work import OnStep, WorkBudget
from indexes.collection.replica import Replica
from indexes.dense.vectors import search_with_one_thread
from indexes.parts.learned import SYNONYMS, SettingsFile, SynonymSettings
from indexes.parts.memory import give_back
from retrieval.access.auth import PRINCIPAL, Principal
from retrieval.admission.ceiling import AnswerBudget, BudgetShare
from retrieval.base.cancellation import Abandoned
from retrieval.base.index_options import options_of
from retrieval.base.settings import Config
from retrieval.embedding.counting import TokenCounter
from retrieval.embedding.embedders import provider_of
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import find_models, load_model, read_manifest
from retrieval.embedding.queries import QueryReader
from retrieval.processes.frames import (
    ORDERS,
    Alive,
    Answer,
    AnyAsk,
    Arriving,
    AskSearch,
    AskShard,
    Begun,
    CatchUp,
    Configure,
    FollowCollection,
    Following,
    Forget,
    Forgotten,
    Leave,
    Opened,
    Order,
    Reached,
    Reply,
    SearchFailure,
    SearchReply,
    ShardReply,
    encode_frame,
)
from retrieval.processes.spending import Spending
from retrieval.search.calls import CallRefused, PartitionCall, answer_call
from retrieval.search.plan import EmbeddedQuery, Plan, make_plan
from retrieval.search.shard import LocalShard, run_at_once
from retrieval.search.similar import read_examples
from retrieval.search.stages import Found, search_at_once
from retrieval.search.stopwatch import Stopwatch
from retrieval.search.travel import unpack
from retrieval.wire.search import SearchRequest

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 18
LOOK_EVERY_S = 0.001  # for callers that have left, during a search
SIGN_EVERY_S = 0.3  # a sign of life during a long search
IDLE_S = 0.05  # between two looks at what was written
CATCH_UP_EVERY_S = 0.2  # while searches always wait
BETWEEN_S = 0.02  # between two answers while a search waits for what is being read
EMBEDDED_TOGETHER_MAX = 4  # texts in a run of the model; more would make the first wait


class HitList:
    """The passages that the searches of one answer returned."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def count(self, passages: Iterable[int]) -> None:
        self.ids.extend(passages)

    def take(self) -> list[int]:
        ids, self.ids = self.ids, []
        return ids


@dataclass(slots=True)
class FollowedCollection:
    """A collection that is searched here, and the model of its vectors, if there is one. `behind`: something was
    written since."""

    replica: Replica
    opened: Opened
    hits: HitList
    reader: QueryReader | None
    behind: bool = False


@dataclass(slots=True, eq=False)
class PlannedSearch:
    """A search that waits or is under way. `vector` is that of its text, once it is known; `own` says that it was
    embedded here."""

    ask: AskSearch
    plan: Plan
    followed: FollowedCollection
    watch: Stopwatch
    vector: Floats | None
    own: bool = False

    @property
    def key(self) -> str:
        """The access key of the caller."""
        return self.ask.caller[0]


@dataclass(slots=True, eq=False)
class PlannedCalls:
    """Calls of a shard that wait or are under way."""

    ask: AskShard
    followed: FollowedCollection
    watch: Stopwatch

    @property
    def key(self) -> str:
        return self.ask.key


class NotFollowed(Exception):
    """The collection is not searched here."""


class Overtaken(Exception):
    """A search met passages that were deleted after its snapshot, while its collection is brought to the last commit:
    it is answered after that."""


def is_about(order: Order, collection: str) -> bool:
    """Whether an order changes what searches of a collection find, or how."""
    match order:
        case FollowCollection(opened):
            return opened.name == collection
        case Forget(name):
            return name == collection
        case _:
            return True


class SearchWorker:
    """The state of a search process. Call `run`."""

    def __init__(self, connection: socket.socket, on_configured: Callable[[Config], None]) -> None:
        """`on_configured` is called with the settings, whenever they change."""
        self._socket, self._on_configured = connection, on_configured
        self._arriving = Arriving(ORDERS)
        self._config, self._data = Config(), Path()
        self._followed: dict[str, FollowedCollection] = {}
        self._readers: dict[str, QueryReader] = {}
        self._waiting: deque[AnyAsk] = deque()
        self._planned: list[PlannedSearch | PlannedCalls] = []
        self._spending = Spending()
        self._under_way: set[int] = set()  # searches that were not replied to yet
        self._left: set[int] = set()  # those whose callers have left
        self._orders: deque[Order] = deque()  # that wait until no search is under way
        self._ended = False
        self._looked = self._caught_up = self._replied = 0.0
        self._catching_up = False
        self._between = 0.0  # when a search was answered in the middle of that
        self._begun: int | None = None  # the search that the service was told of since the last reply
        self._let_go = False  # of a collection, whose memory is still to be given back
        self._being_opened: dict[str, bool] = {}  # by name, whether it was to be forgotten since
        self._opening: queue.SimpleQueue[Opened] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[tuple[Opened, FollowedCollection | None]] = queue.SimpleQueue()
        self._wake, self._waker = os.pipe()
        self._poll = select.poll()  # a descriptor may be too large for select.select
        for one in (self._socket.fileno(), self._wake):
            self._poll.register(one, select.POLLIN)
        threading.Thread(target=self._open_collections, name="opening", daemon=True).start()

    def run(self) -> None:
        """Serve until the socket is closed."""
        search_with_one_thread()
        while not self._ended:
            self._receive(0 if self._waiting or self._planned else IDLE_S)
            while self._orders:
                self._obey(self._orders.popleft())
            self._take_opened()
            busy = bool(self._waiting or self._planned)
            if (behind := self._first_behind()) is not None:
                self._catch_up_for(behind)
            if not busy or time.monotonic() - self._caught_up > CATCH_UP_EVERY_S:
                self._catch_up()
            if busy:
                self._answer_next()
            elif self._let_go:
                self._give_back()

    def _give_back(self) -> None:
        """Give back the memory of all that was closed. Garbage in cycles may hold snapshots, and with them files; in a
        process at rest the collector does not run by itself."""
        self._let_go = False
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        give_back()

    # -- the socket

    def _receive(self, timeout_s: float) -> None:
        """Take the orders that have come, waiting for the first of them at most this long."""
        ready = {descriptor for descriptor, _ in self._poll.poll(1000 * timeout_s)}
        if self._wake in ready:
            os.read(self._wake, 64)
        if self._socket.fileno() not in ready:
            return
        data = self._socket.recv(READ_BYTES)
        self._ended = not data
        for order in self._arriving.feed(data):
            match order:
                case AskSearch() | AskShard():
                    self._under_way.add(order.id)
                    self._waiting.append(order)
                case Leave(number) if number in self._under_way:
                    self._left.add(number)
                case Leave():
                    pass
                case CatchUp(name):
                    if (found := self._followed.get(name)) is not None:
                        found.behind = True
                case _:
                    self._orders.append(order)

    def _obey(self, order: Order) -> None:
        match order:
            case FollowCollection():
                self._follow(order.collection)
            case Forget(name, withheld=False):
                self._close(name)
            case Forget():
                self._close(order.name)
                if order.name in self._being_opened:
                    self._being_opened[order.name] = True
                else:
                    self._send(Forgotten(order.name))
            case Configure():
                self._config, self._data = order.config, Path(order.data)
                self._on_configured(order.config)

    def _send(self, reply: Reply) -> None:
        frame, self._replied = encode_frame(reply), time.monotonic()
        if isinstance(reply, SearchReply | ShardReply | SearchFailure):
            self._begun = None
            self._under_way.discard(reply.id)
            self._left.discard(reply.id)
        try:
            self._socket.sendall(frame)
        except OSError:
            self._ended = True

    def _look(self, number: int) -> bool:
        """Between the steps of a search: whether its caller has left, or everything ends."""
        if time.monotonic() - self._looked > LOOK_EVERY_S:
            self._receive(0)
            self._looked = time.monotonic()
            self._give_sign()
        return self._ended or number in self._left

    def _give_sign(self) -> None:
        """Between the steps of long work: show that this process is alive."""
        if time.monotonic() - self._replied > SIGN_EVERY_S:
            self._send(Alive())

    # -- collections

    def _follow(self, wanted: Opened) -> None:
        if wanted.name in self._being_opened:
            return
        found = self._followed.get(wanted.name)
        if found is None or found.opened.opening != wanted.opening or not found.replica.is_current():
            self._close(wanted.name)
            self._being_opened[wanted.name] = False
            self._opening.put(wanted)
            return
        replica = found.replica
        if found.opened.tuned_ms != wanted.tuned_ms:
            replica.tune()
        found.opened, found.behind = replace(found.opened, tuned_ms=wanted.tuned_ms), True
        replica.look()
        self._send(Following(wanted.name, self._as_searched(found)))

    def _as_searched(self, followed: FollowedCollection) -> Opened:
        followed.opened = replace(followed.opened, generation=followed.replica.generation)
        return followed.opened

    def _close(self, name: str) -> None:
        found = self._followed.pop(name, None)
        if found is not None:
            found.replica.close()
            self._let_go = True

    def _open_collections(self) -> None:
        """On a thread of its own: open what is asked for, one after the other."""
        while True:
            wanted = self._opening.get()
            try:
                found = self._open(wanted)
            except NotFollowed:
                found = None
            except Exception as error:  # noqa: BLE001 - the service then searches it itself
                logger.warning("collection %s is not searched here: %s", wanted.name, error)
                found = None
            self._opened.put((wanted, found))
            os.write(self._waker, b"1")

    def _open(self, wanted: Opened) -> FollowedCollection:
        hits = HitList()

        def on_step(passages: int) -> None:
            if self._being_opened.get(wanted.name):
                raise NotFollowed(wanted.name)

        options = dataclasses.replace(options_of(self._config), read=on_step)
        replica = Replica(self._data / wanted.name, options, hits)
        try:
            settings = replica.settings
            reader = self._reader(settings.model, settings.fingerprint) if settings.embeds else None
        except BaseException:
            replica.close()
            raise
        opened = replace(wanted, generation=replica.generation)
        return FollowedCollection(replica, opened, hits, reader)

    def _reader(self, name: str, fingerprint: str) -> QueryReader:
        if name not in self._readers:
            folder = find_models(Path(self._config.models.folder)).get(name)
            if folder is None:
                raise NotFound(f"there is no model {name!r}; the service searches by words alone")
            encoder = Encoder(load_model(folder), threads=1, provider=provider_of(self._config))
            self._readers[name] = QueryReader(
                encoder, read_manifest(folder), TokenCounter(encoder.tokenizers)
            )
            self._readers[name].vectors_of(["warm up"])
        reader = self._readers[name]
        if reader.encoder.fingerprint != fingerprint:
            raise InvalidInput(f"the model {name} is another one than that of the vectors")
        return reader

    def _take_opened(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                wanted, found = self._opened.get_nowait()
                if self._being_opened.pop(wanted.name):
                    if found is not None:
                        found.replica.close()
                    self._send(Forgotten(wanted.name))
                    continue
                if found is not None:
                    self._followed[wanted.name] = found
                    gc.collect()
                    gc.freeze()
                self._send(Following(wanted.name, None if found is None else found.opened))
                if found is not None:
                    self._send(Reached(wanted.name, found.replica.snapshot.seq))

    def _catch_up(self) -> None:
        """Bring collections to the last commit: while no search waits, and now and then while some always do, or the
        first search of a collection that is written all the time would wait for all of that. Between two steps a search
        is answered that needs nothing of it."""
        self._caught_up, self._catching_up = time.monotonic(), True
        for found in list(self._followed.values()):
            if found.behind or found.replica.ready:
                self._catch_up_with(found)
        self._catching_up = False

    def _first_behind(self) -> FollowedCollection | None:
        """Return the collection that must be brought to the last commit for the search that has waited longest."""
        ask = next((one for one in self._waiting if not self._can_be_planned(one)), None)
        return None if ask is None else self._followed[ask.collection]

    def _catch_up_for(self, followed: FollowedCollection) -> None:
        """Bring a collection to the last commit for the searches that wait for it now; others are answered between."""
        name = followed.opened.name
        waiting = {one.id for one in self._waiting if one.collection == name}
        self._catching_up = True
        self._catch_up_with(followed)
        self._catching_up = False
        # What is there now is all there is: an operation that was asked for may not come.
        self._waiting = deque(replace(one, seq=0) if one.id in waiting else one for one in self._waiting)

    def _answer_between(self, name: str) -> None:
        """Answer a search that needs nothing of what is being read. While others wait for that, now and then: it takes
        as long as the answers between its steps. Raises NotFollowed if the collection is to be closed."""
        self._give_sign()
        self._receive(0)
        if any(isinstance(order, Forget) and order.name == name for order in self._orders):
            raise NotFollowed(name)
        is_awaited = not all(map(self._can_be_planned, self._waiting))
        if not is_awaited or time.monotonic() - self._between > BETWEEN_S:
            self._answer_next()
            self._between = time.monotonic()

    def _can_be_planned(self, ask: AnyAsk) -> bool:
        """Whether a search waits for nothing: its collection, if it is searched here, is far enough for it, and no
        order that waits is about it."""
        if any(is_about(order, ask.collection) for order in self._orders):
            return False
        found = self._followed.get(ask.collection)
        return found is None or found.replica.snapshot.seq >= ask.seq

    def _catch_up_with(self, followed: FollowedCollection, on_step: OnStep | None = None) -> bool:
        """Bring a collection to the last commit. If that cannot be done, close it and return False: the service has it
        opened again, unless it is to be closed."""
        followed.behind = False  # until something more is written, which may be before this ends
        try:
            followed.replica.catch_up(on_step or partial(self._answer_between, followed.opened.name))
        except NotFollowed:
            self._close(followed.opened.name)
            return False
        except NearlineError as error:
            logger.info("collection %s is opened again: %s", followed.opened.name, error.message)
            self._close(followed.opened.name)
            self._send(Following(followed.opened.name, None))
            return False
        if followed.opened.generation != followed.replica.generation:
            self._send(Following(followed.opened.name, self._as_searched(followed)))
        self._send(Reached(followed.opened.name, followed.replica.snapshot.seq))
        return True

    # -- searches

    def _answer_next(self) -> None:
        """Plan what waits, as many as share a run of the model, and answer one."""
        room = EMBEDDED_TOGETHER_MAX - len(self._planned)
        for ask in list(islice(filter(self._can_be_planned, self._waiting), room)):
            self._waiting.remove(ask)
            with self._replying(ask.id):
                self._planned.append(self._plan(ask))
        if not self._planned:
            return
        search, begun = self._spending.next(self._planned), time.thread_time()
        if search.ask.id != (
            self._begun or min(self._under_way)
        ):  # which the service takes to be answered now
            self._begun = search.ask.id
            self._send(Begun(search.ask.id))
        try:
            with self._replying(search.ask.id):
                self._send(self._answer(search))
        except Overtaken:
            self._waiting.append(replace(search.ask, seq=search.followed.replica.snapshot.seq + 1))
        self._planned.remove(search)
        self._spending.add(search.key, time.thread_time() - begun)

    @contextlib.contextmanager
    def _replying(self, number: int) -> Iterator[None]:
        """Reply with a `SearchFailure` if this block raises an error. Without a refusal in it, the error is not the
        caller's fault: another process is asked, or the service searches itself."""
        try:
            yield
        except Overtaken:
            raise
        except Abandoned:
            self._send(SearchFailure(number, "its caller has left"))
        except (InvalidInput, DeadlineExceeded) as error:
            self._send(SearchFailure(number, error.message, CallRefused.of(error)))
        except (NotFollowed, NearlineError) as error:
            self._send(SearchFailure(number, str(error)))
        except Exception as error:
            logger.exception("a search failed")
            self._send(SearchFailure(number, repr(error)))

    def _plan(self, ask: AnyAsk) -> PlannedSearch | PlannedCalls:
        if ask.id in self._left:
            raise Abandoned
        found = self._followed.get(ask.collection)
        if found is None:
            raise NotFollowed(ask.collection)
        replica, watch = found.replica, Stopwatch(deadline=ask.deadline)
        watch.look = partial(self._look, ask.id)
        if isinstance(ask, AskShard):
            self._spending.arrive(ask.key)
            return PlannedCalls(ask, found, watch)
        key, tenant, groups = ask.caller
        PRINCIPAL.set(Principal(key=key, tenant=tenant, groups=groups))
        request = msgspec.json.decode(ask.request, type=SearchRequest)
        plan = make_plan(
            request,
            replica.settings.dimensions,
            self._config,
            ask.ranking,
            self._synonyms(replica, ask.synonyms_ms),
            embeds=replica.settings.embeds,
            strained=ask.strained,
        )
        query = replace(plan.query, counted=plan.query.counted and ask.counted, sparing=ask.sparing)
        plan = replace(plan, counted=ask.counted, query=query)
        vector = None if ask.vector is None else np.frombuffer(ask.vector, np.float32)
        self._spending.arrive(key)
        return PlannedSearch(ask, plan, found, watch, vector)

    def _embed_planned(self, search: PlannedSearch) -> None:
        """Embed the text of a search, and with it those of the others that have the same model."""
        reader = search.followed.reader
        lacking = [
            one for one in self._planned
            if isinstance(one, PlannedSearch)
            and one.vector is None and one.plan.text is not None and one.followed.reader is reader
        ]  # fmt: skip
        if reader is None or search not in lacking:
            return
        begun = time.perf_counter()
        vectors = reader.vectors_of([str(one.plan.text) for one in lacking])
        for one, vector in zip(lacking, vectors, strict=True):
            one.vector, one.own = vector, True
            one.watch.spans.append((begun, time.perf_counter(), "embed"))

    def _answer(self, planned: PlannedSearch | PlannedCalls) -> Answer:
        if isinstance(planned, PlannedSearch) and planned.vector is None:
            self._embed_planned(planned)
        if self._followed.get(planned.ask.collection) is not planned.followed:
            raise NotFollowed(planned.ask.collection)  # it was closed since
        planned.followed.replica.documents = planned.ask.documents
        planned.followed.hits.take()
        return (
            self._answer_calls(planned) if isinstance(planned, PlannedCalls) else self._answer_search(planned)
        )

    def _answer_calls(self, planned: PlannedCalls) -> ShardReply:
        replica, spared = planned.followed.replica, list[Spared]()
        snapshot, watch = replica.snapshot, planned.watch
        calls: list[PartitionCall] = unpack(planned.ask.calls, list[PartitionCall])
        replies = [
            answer_call(LocalShard(replica, snapshot, watch, WorkBudget()), call, spared) for call in calls
        ]
        return ShardReply(planned.ask.id, snapshot.seq, replies, planned.followed.hits.take(), spared)

    def _answer_search(self, search: PlannedSearch) -> SearchReply:
        ask, watch, replica, begun = search.ask, search.watch, search.followed.replica, time.thread_time()
        key, tenant, groups = ask.caller
        PRINCIPAL.set(Principal(key=key, tenant=tenant, groups=groups))
        budget = AnswerBudget(ask.bytes_max, param=ask.param)
        budget.taken, budget.work = ask.taken, ask.work
        share, embedded = BudgetShare(budget), embedded_query(search)
        shard = LocalShard(replica, replica.snapshot, watch, budget.work)
        answer = self._search(shard, embedded, watch, share)
        if answer.vanished and self._catching_up:
            raise Overtaken
        if answer.vanished:
            with replica.log.pinned():  # which has all that is read here, so that no hit can be gone
                caught_up = self._catch_up_with(search.followed, self._give_sign)
                if caught_up and replica.snapshot.seq > shard.seq:
                    shard = LocalShard(replica, replica.snapshot, watch, budget.work)
                    answer = self._search(shard, embedded, watch, share)
        return SearchReply(
            id=ask.id,
            answer=answer.answer,
            vanished=answer.vanished,
            grounds=answer.grounds,
            generation=shard.snapshot.generation,
            seq=shard.seq,
            content=shard.snapshot.content,
            spans=watch.spans,
            cpu_s=time.thread_time() - begun,
            vector=search.vector.tobytes() if search.own and search.vector is not None else None,
            work=budget.work,
            taken=budget.taken,
            hits=search.followed.hits.take(),
            spared=answer.spared,
        )

    def _search(
        self, shard: LocalShard, embedded: EmbeddedQuery, watch: Stopwatch, share: BudgetShare
    ) -> Found:
        if embedded.request.like or embedded.request.unlike:
            dimensions = shard.collection.settings.dimensions
            read = partial(read_examples, shard, embedded.request, dimensions)
            embedded = embedded.with_examples(run_at_once(read))
        return search_at_once(embedded, shard, watch, share)

    def _synonyms(self, replica: Replica, set_ms: int | None) -> SynonymSettings | None:
        """Return the synonyms of a collection, read again if they were set since."""
        current = replica.synonyms.current
        if set_ms != (current and current.set_ms):
            replica.synonyms = SettingsFile(replica.folder / SYNONYMS, SynonymSettings)
        return replica.synonyms.current


def embedded_query(search: PlannedSearch) -> EmbeddedQuery:
    """Return the query with its vector, and with what fusion needs to know of the model."""
    plan, reader, snapshot = search.plan, search.followed.reader, search.followed.replica.snapshot
    if plan.mode == "lexical":
        return EmbeddedQuery(plan, plan.query)
    if reader is None:
        return EmbeddedQuery(plan, plan.query)
    if plan.text is None:
        return EmbeddedQuery(plan, plan.query, reader.manifest.similarity_floor)
    text, language = plan.text, plan.query.language

    def read() -> tuple[float, bool]:
        return reader.share_read(text, language, lambda: snapshot.spoken), reader.is_cut(text)

    query = replace(plan.query, vector=search.vector)
    return EmbeddedQuery(plan, query, reader.manifest.similarity_floor, read)
