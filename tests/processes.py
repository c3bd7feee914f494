"""Which processes another has started, as Linux tells it."""

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
