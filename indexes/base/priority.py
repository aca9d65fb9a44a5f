"""The priority of threads: on Linux it belongs to each thread, not to the process."""

from __future__ import annotations

import logging
import os
import threading

logger = logging.getLogger(__name__)

NICENESS = 10


def step_aside() -> None:
    """Lower the priority of this thread for good, so that searches get the cores first. Also a thread initializer."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError as error:  # a hardened container may forbid even this
        logger.debug("background threads keep their priority: %s", error)
