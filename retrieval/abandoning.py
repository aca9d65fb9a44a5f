"""Work on a thread that ends soon after its caller has gone, or the caller's deadline has passed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import TypeVar

from indexes.courtesy import GoOn
from indexes.errors import DeadlineExceeded

T = TypeVar("T")


class Abandoned(Exception):
    """Ends the work. Nobody is left to see it."""


async def abandonable(
    work: Callable[[GoOn], T], *, deadline: float | None = None, threads: Executor | None = None
) -> T:
    """What `work` returns. It must call its argument between any two of its steps, which raises once nobody waits.

    `deadline` in the loop's time; raises DeadlineExceeded after it. `threads`, where not those that everybody uses.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    gone = threading.Event()

    def go_on() -> None:
        if gone.is_set():
            raise Abandoned

    try:
        async with asyncio.timeout_at(deadline):
            return await loop.run_in_executor(threads, context.run, work, go_on)
    except TimeoutError:
        raise DeadlineExceeded(
            "the deadline passed before the answer was complete", param="deadline_ms"
        ) from None
    finally:
        gone.set()
