"""Ends a service that was told to stop and cannot: native code, or one long step, holds its interpreter.

The service's own timer (`serving.leave_within`) is set by Python code, which then never runs. The watchdog is a process
of its own, a few megabytes without any package. The C handler of a signal writes the signal's number to a pipe whether
or not the interpreter is free. The watchdog reads it, gives the service its time, and kills it; it ends with it.

The module is also the watchdog's program, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

ENDING = {signal.SIGTERM, signal.SIGINT}
LEAVES_S = 0.4  # for the service's own timer to act first


def start_watchdog(stop_s: float) -> subprocess.Popen[bytes]:
    """Watch this process from now on: a SIGTERM or SIGINT gives it `stop_s` seconds to end before it is killed.

    Takes the interpreter's wake-up descriptor, which `loop.add_signal_handler` would take back: use `signal.signal`.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(stop_s + LEAVES_S)]
    # In a session of its own, so that a Ctrl-C in a terminal does not end it first.
    child = subprocess.Popen(command, stdin=read, stdout=subprocess.DEVNULL, start_new_session=True)
    os.close(read)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return child


def watch(pid: int, stop_s: float) -> None:
    """Read numbers of signals from standard input until the process ends, or kill it `stop_s` after the first that
    should end it."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    signals = sys.stdin.fileno()
    while not ENDING & set(os.read(signals, 64) or [signal.SIGTERM]):
        pass
    ended, _, _ = select.select([process], [], [], stop_s)
    if not ended:
        sys.stderr.write(
            f"nearline: the service did not end within {stop_s:g} s of the signal that told it to, and was killed; "
            "acknowledged writes are on disk\n"
        )
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]))
