"""One definition of each endpoint for two classes: awaited on an asynchronous client, called on a blocking one.

A blocking client runs the same coroutines on an event loop in its own thread. The decorators tell type checkers what
a method returns on either.

    @endpoint   a coroutine: its result
    @stream     an async generator: AsyncIterator or Iterator
    @steps      a generator of coroutines, which itself runs on the calling thread: its result
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from retrieval.clients.errors import DISCONNECTED, ServiceError
from retrieval.clients.transport import ServiceConnection

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_S = 10.0


class Core:
    """The class whose methods the endpoints are."""

    connection: ServiceConnection


class endpoint(Generic[P, T]):  # noqa: N801 - a decorator, as property is
    def __init__(self, make: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Core, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if not isinstance(client, Blocking):
            return self._make.__get__(client, owner)

        @functools.wraps(self._make)
        def call(*args: Any, **kwargs: Any) -> T:
            return client.run(lambda core: self._make(core, *args, **kwargs))

        return call


class stream(Generic[P, T]):  # noqa: N801
    def __init__(self, make: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Core, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if not isinstance(client, Blocking):
            return self._make.__get__(client, owner)

        @functools.wraps(self._make)
        def call(*args: Any, **kwargs: Any) -> Iterator[T]:
            items: Any = None
            pid = os.getpid()

            async def begin(core: Core) -> Any:
                return self._make(core, *args, **kwargs)

            async def following(_: Core) -> tuple[bool, Any]:
                try:
                    return True, await anext(items)
                except StopAsyncIteration:
                    return False, None

            items = client.run(begin)
            try:
                while (found := client.run_in(pid, following))[0]:
                    yield found[1]
            finally:
                if os.getpid() == pid:
                    client.run(lambda _: items.aclose())
                else:
                    client.inherited.append(items)

        return call


class steps(Generic[P, T]):  # noqa: N801
    def __init__(
        self, make: Callable[Concatenate[Any, P], Generator[Coroutine[Any, Any, Any], Any, T]]
    ) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Core, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        @functools.wraps(self._make)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await drive(self._make(client, *args, **kwargs))

        @functools.wraps(self._make)
        def called(*args: Any, **kwargs: Any) -> Any:
            # Only `run` waits in it, so the coroutine runs from start to end without an event loop.
            through = functools.partial(client.run_in, os.getpid())
            work = drive(self._make(client.core, *args, **kwargs), through=through)
            try:
                work.send(None)
            except StopIteration as end:
                return end.value
            raise AssertionError

        return called if isinstance(client, Blocking) else awaited


async def drive(
    plan: Generator[Coroutine[Any, Any, Any], Any, T], through: Callable[[Any], Any] | None = None
) -> T:
    """Await each coroutine of a plan, or pass it to `through`, and send the result or the error back into the plan."""
    go_on: Callable[[Any], Coroutine[Any, Any, Any]] = plan.send
    value: Any = None
    while True:
        try:
            step = go_on(value)
        except StopIteration as end:
            found: T = end.value
            return found
        try:
            value = through(lambda _, step=step: step) if through else await step
            go_on = plan.send
        except BaseException as error:  # noqa: BLE001 - the plan decides what to do about it
            value, go_on = error, plan.throw


@dataclass(frozen=True, slots=True)
class Running:
    """A core and the event loop that it is used on."""

    core: Core
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    pid: int

    def close(self) -> None:
        if self.pid != os.getpid() or self.loop.is_closed() or threading.current_thread() is self.thread:
            return  # the loop belongs to the parent (after a fork), is closed, or would wait for itself
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_S)


def run_until_stopped(loop: asyncio.AbstractEventLoop, core: Core) -> None:
    """Run the event loop on this thread until it is stopped; then cancel what is still under way, because its callers
    would wait forever."""

    async def end() -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await core.connection.close()

    loop.run_forever()
    loop.run_until_complete(end())
    loop.close()


class Blocking(Core):
    """Runs coroutines of a core on its own thread. Safe to use from several threads and after a fork: a child
    process opens its own connections."""

    def __init__(self, make: Callable[[], Core]) -> None:
        self._make = make
        self._starting = threading.Lock()
        self._running: Running | None = None
        # What a fork has of its parent, kept because closing the parent's connections would disturb it.
        self.inherited: list[object] = []
        self.connection = make().connection

    @property
    def core(self) -> Core:
        return self._started().core

    def run(self, work: Callable[[Core], Coroutine[Any, Any, T]]) -> T:
        future = self._begin(work)
        try:
            return future.result()
        except CancelledError:
            raise closed() from None
        except BaseException:  # including Ctrl-C
            future.cancel()
            raise

    def run_in(self, pid: int, work: Callable[[Core], Coroutine[Any, Any, T]]) -> T:
        """Do the same as `run` for a step of what began in the process `pid`. Raises ServiceError in a fork of it,
        where the connection that it uses is still the parent's."""
        if os.getpid() != pid:
            work(self.core).close()
            message = (
                "this began before the process was forked, and uses connections of the parent: begin again"
            )
            raise ServiceError(message, kind=DISCONNECTED)
        return self.run(work)

    async def awaited(self, work: Callable[[Core], Coroutine[Any, Any, T]]) -> T:
        """Do the same as `run` for a coroutine on any event loop, which keeps running."""
        try:
            return await asyncio.wrap_future(self._begin(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise closed() from None

    def _begin(self, work: Callable[[Core], Coroutine[Any, Any, T]]) -> Future[T]:
        while True:
            running = self._started()
            if threading.current_thread() is running.thread:
                raise RuntimeError(
                    "a callback of this client cannot call it: the client's thread would wait for itself"
                )
            coroutine = work(running.core)
            try:
                return asyncio.run_coroutine_threadsafe(coroutine, running.loop)
            except RuntimeError:
                coroutine.close()
                if not running.loop.is_closed():  # else another thread has just closed it
                    raise

    def close(self) -> None:
        """Close all connections. Requests under way on other threads fail as disconnected. The client may be used
        again and opens new ones."""
        with self._starting:
            running, self._running = self._running, None
        if running is not None:
            running.close()

    def _started(self) -> Running:
        running = self._running
        if running is not None and running.pid == os.getpid():
            return running
        with self._starting:
            if self._running is not None and self._running.pid != os.getpid():
                self.inherited.append(self._running)
                self._running = None
            if self._running is None:
                loop, core = asyncio.new_event_loop(), self._make()
                thread = threading.Thread(
                    target=run_until_stopped, args=(loop, core), name="nearline-client", daemon=True
                )
                thread.start()
                self._running = Running(core, loop, thread, os.getpid())
                weakref.finalize(self, self._running.close)
            return self._running


def closed() -> ServiceError:
    return ServiceError("the client was closed while the request was under way", kind=DISCONNECTED)
