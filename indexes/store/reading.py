"""Reading many objects of a store at a time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from indexes.base.structs import learn_structs

READ_TOGETHER = 8  # objects: a part has some 16 MB
T = TypeVar("T")
R = TypeVar("R")


def in_order(read: Callable[[T], R], wanted: Iterable[T]) -> Iterator[R]:
    """Read several objects at a time, and return them in order."""
    learn_structs()
    with ThreadPoolExecutor(READ_TOGETHER, "store-read") as pool:
        under_way = deque[Future[R]]()
        try:
            for one in wanted:
                under_way.append(pool.submit(read, one))
                if len(under_way) >= READ_TOGETHER:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
