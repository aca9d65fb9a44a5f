"""Whether a store can be used, and when to try again after a failure."""

from __future__ import annotations

import logging
import time

from indexes.base.errors import NearlineError, message_of

logger = logging.getLogger(__name__)

RETRY_S = (0.5, 15.0)  # the first pause after a failure, and the longest


class Availability:
    """What the threads that upload know of the store together. `error` says why it cannot be used; "" if it can."""

    def __init__(self) -> None:
        self.error = ""
        self.pause_s = RETRY_S[0]
        self._failed_since = self._retry_at = 0.0
        self._stopped = False

    @property
    def may_try(self) -> bool:
        return time.monotonic() >= self._retry_at

    def failed(self, error: Exception) -> None:
        """Wait before the next try, longer after each."""
        if isinstance(error, (NearlineError, OSError)):
            message = message_of(error)
        else:
            message = repr(error)
            logger.error("what follows is a bug", exc_info=error)
        if not self.error:
            logger.error("the store gets nothing for now: %s", message)
            self._failed_since, self.pause_s = time.monotonic(), RETRY_S[0]
        elif self.may_try:
            self.pause_s = min(2 * self.pause_s, RETRY_S[1])
        self.error = message
        self._retry_at = time.monotonic() + self.pause_s

    def stop(self, why: str) -> None:
        """It will not be used again."""
        self.error, self._stopped = why, True

    def recovered(self) -> None:
        if self._stopped:
            return
        if self.error:
            logger.info("the store can be used again after %.0f s", time.monotonic() - self._failed_since)
        self.error, self._retry_at = "", 0.0
