"""Kills a service that was told to stop but cannot, because native code or one long step blocks its interpreter.

The service's own timer (`serving.leave_within`) is set by Python code, which never runs in that case. The watchdog is a
separate process of a few megabytes. The C handler of a signal writes the signal's number to a pipe even while the
interpreter is blocked. The watchdog reads it, waits, and kills the service. It ends when the service does.

The module is also the watchdog's program, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

ENDING = {signal.SIGTERM, signal.SIGINT}
LEAVES_S = 0.4  # extra time for the service's own timer to act first


def start_watchdog(stop_s: float) -> subprocess.Popen[bytes]:
    """Watch this process from now on: after a SIGTERM or SIGINT it has `stop_s` seconds to end before it is killed.

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
    """Read signal numbers from standard input until the process ends, and kill it `stop_s` after the first that should
    end it."""
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
