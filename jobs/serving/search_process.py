"""The program of a search process (`retrieval/processes/worker.py`). Its arguments are the descriptor of a socket and
the id of the service's process.

It ends when the service does, so it ignores the signals that tell a service to stop: requests under way still need it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, or exit if it has. Elsewhere than on Linux, the end of
    the socket tells."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main(descriptor: int, parent: int) -> None:
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    end_with(parent)

    # Loading these takes half a second, in which the service may end. It leaves no garbage, and looking for some would
    # take a sixth of it.
    gc.disable()
    from indexes.base.structs import learn_structs
    from jobs.serving.interpreter import share_heaps, tune_interpreter
    from jobs.serving.log_lines import set_up_logging
    from retrieval.processes.worker import SearchWorker

    gc.enable()
    learn_structs()
    share_heaps()
    with socket.socket(fileno=descriptor) as connection:
        name = f"search-process-{os.getpid()}"
        worker = SearchWorker(connection, on_configured=lambda config: set_up_logging(config.log, name))
        tune_interpreter()
        worker.run()
    # Nothing here is to be saved, and a background thread may be in native code for seconds.
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
