"""What was seen from outside, written down outside the system: one line of JSON each, in one file a process.

A line is written at once and by one system call, so that a process that is killed right after has said all it knew. The
last line of one that was killed in the middle of it is left out.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Recorder:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"what": what, "at": time.time(), **fields}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[Record]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


class Tail:
    """Reads on in a file that is still being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def more(self) -> list[Record]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._place)
            read = file.read()
        whole = read[: read.rfind(b"\n") + 1]
        self._place += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
