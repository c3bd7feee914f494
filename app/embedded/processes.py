"""Processes by their number: whether they live, how they are ended, what they end with."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)  # loaded now: not between fork and exec


class EmbeddedPostgresError(RuntimeError):
    """The server cannot be run; the message says why and, where we know it, what to do."""


def ends_with_parent(death_signal: signal.Signals, parent: int) -> bool:
    """Tie the life of this process to its parent's (on Linux); False when that is dead already."""
    if sys.platform != "linux":
        return True
    LIBC.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(death_signal))
    return os.getppid() == parent


def end(pid: int, alive: Callable[[], bool]) -> None:
    """Fast shutdown, then immediate, then by force: from the last two the next start recovers by the log."""
    for request, seconds in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.kill(pid, request)
        if wait_until(lambda: not alive(), seconds):
            return
    raise EmbeddedPostgresError(f"PostgreSQL (process {pid}) does not end, not even when killed")


def command_line(pid: int) -> str:
    """Empty if there is no such process, or only the zombie of one."""
    if sys.platform == "linux":
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            line = b""
    else:
        ps = ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)]
        line = subprocess.run(ps, capture_output=True, check=False).stdout
    return os.fsdecode(line.replace(b"\0", b" "))


def can_be_signalled(pid: int) -> bool:
    """What PostgreSQL goes by when it asks whether the process in a pid file is alive."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        return True
    return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
