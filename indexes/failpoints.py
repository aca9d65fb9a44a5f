"""Named places where a test lets this process die or fail: `NEARLINE_FAILPOINT=name[:nth]=kill|error`.

    commit.before_sync=kill      SIGKILL when this place is reached for the first time
    publish.written:3=error      StorageError when it is reached for the third time, and only then

The variable is read once, when this module is imported; a child process reads it for itself. While it is not set,
`reach` is one comparison. The tests find the names in the source, so a new place is tested without being listed.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal

from indexes.errors import InvalidInput, StorageError

logger = logging.getLogger(__name__)

VARIABLE = "NEARLINE_FAILPOINT"
SYNTAX = re.compile(r"([a-z_.]+)(?::([1-9][0-9]*))?=(kill|error)")


class Failpoint:
    """One place that is armed: the nth time it is reached, by whichever thread, its action happens."""

    def __init__(self, name: str, nth: int, action: str) -> None:
        self.name = name
        self._nth = nth
        self._action = action
        self._visits = itertools.count(1)  # next() on it is one step under the interpreter's lock

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
        # To the descriptor itself: nothing that is buffered will be written any more.
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
    """Say that execution has come to this place. Nothing happens unless the place is armed."""
    if _armed is not None and _armed.name == name:
        _armed.visit()
