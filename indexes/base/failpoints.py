"""Failpoints: named places where tests make this process die or fail: `NEARLINE_FAILPOINT=name[:nth]=kill|error`.

    commit.before_sync=kill      SIGKILL the first time this failpoint is reached
    publish.written:3=error      StorageError the third time it is reached, and only then

The variable is read once, on import; child processes inherit it. If it is not set, `reach` costs one comparison. Tests
find the names in the source, so new failpoints are tested automatically.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal

from indexes.base.errors import InvalidInput, StorageError

logger = logging.getLogger(__name__)

VARIABLE = "NEARLINE_FAILPOINT"
SYNTAX = re.compile(r"([a-z_.]+)(?::([1-9][0-9]*))?=(kill|error)")


class Failpoint:
    """An armed failpoint: its action happens the nth time it is reached, by any thread."""

    def __init__(self, name: str, nth: int, action: str) -> None:
        self.name = name
        self._nth = nth
        self._action = action
        self._visits = itertools.count(1)  # next() on it is atomic under the GIL

    @staticmethod
    def parse(text: str) -> Failpoint:
        found = SYNTAX.fullmatch(text)
        if found is None:
            raise InvalidInput(f"{VARIABLE} is {text!r}; expected name[:nth]=kill or name[:nth]=error")
        name, nth, action = found.groups()
        return Failpoint(name, int(nth or 1), action)

    def visit(self) -> None:
        if next(self._visits) != self._nth:
            return
        if self._action == "error":
            raise StorageError(f"failpoint {self.name}")
        # Write to the descriptor directly: SIGKILL prevents flushing of buffers.
        os.write(2, f"failpoint {self.name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def from_environment() -> Failpoint | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    logger.warning("%s is set: this process will fail on purpose at %s", VARIABLE, text)
    return Failpoint.parse(text)


_armed = from_environment()


def reach(name: str) -> None:
    """Mark a failpoint. Does nothing unless it is armed."""
    if _armed is not None and _armed.name == name:
        _armed.visit()
