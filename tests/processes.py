"""Which processes another has started, as Linux tells it; and how all of them die in one moment."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> dict[int, bytes]:
    """Its child processes that run, with their command lines; threads and processes may end while we look."""
    found: dict[int, bytes] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in (task / "children").read_text().split():
                with suppress(FileNotFoundError, ProcessLookupError):
                    found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes()
    # One that has ended, and that nobody has asked for yet, has no command line any more.
    return {child: command for child, command in found.items() if command}


def kill_at_once(pid: int) -> None:
    """kill -9 of a process and of all that it has started, before any of them can do anything about it."""
    os.kill(pid, signal.SIGSTOP)
    for child in children_of(pid):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
