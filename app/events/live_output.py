"""Live output: what a run says, token by token, for those who listen in the same process.

The running job's output is kept in memory as long as it runs, and every listener reads it at its own
pace by position: a slow one holds a number, not a buffer. What listeners on other replicas get is the
event log, where the same output stands in rows of 100 ms. Both count positions alike: a character of
text is one, a frame (tool call, thinking, anything that says more than text) is one.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator

from app.dialects.kept import text_of
from app.dialects.neutral import Part

__all__ = ["LiveOutput", "LiveOutputs", "Part", "width"]

# Tokens are strings of a few letters with fifty bytes of overhead each: once that many stand in a row,
# they are joined. A listener that far behind gets them in one piece.
JOIN_AFTER = 512


def width(part: Part) -> int:
    if isinstance(part, str):
        return len(part)
    text = text_of(part)
    return 1 if text is None else len(text)


class LiveOutput:
    """One run's output so far. A run is known by the seq of the event that began it."""

    __slots__ = ("_joined", "_listeners", "_parts", "_starts", "closed", "end", "result", "run")

    def __init__(self, run: int) -> None:
        self.run = run
        self.end = 0
        self.closed = False
        # What the job was done with, once that is committed: its listeners need not read it again.
        self.result: str | None = None
        self._parts: list[Part] = []
        # Position at which each part begins.
        self._starts: list[int] = []
        self._joined = 0
        self._listeners: set[Callable[[], None]] = set()

    def add(self, part: Part) -> None:
        self._parts.append(part)
        self._starts.append(self.end)
        # Nearly always a word; this is called with each of them.
        self.end += len(part) if isinstance(part, str) else width(part)
        if len(self._parts) - self._joined > 2 * JOIN_AFTER:
            self._join()
        self._ring()

    def close(self, result: str | None) -> None:
        self.closed, self.result = True, result
        self._ring()

    def after(self, position: int, limit: int | None = None) -> list[tuple[int, Part]]:
        """What reaches beyond this position, each part with where it begins; at most so many of them."""
        if position >= self.end:
            return []
        if position == self._starts[-1]:
            # Nearly always: the last word is what is new.
            return [(position, self._parts[-1])]
        first = max(0, bisect_right(self._starts, position) - 1)
        until = None if limit is None else first + limit
        return list(zip(self._starts[first:until], self._parts[first:until], strict=True))

    def last_kept_before(self, position: int) -> Part | None:
        """What the texts behind this position look like, where that was said before it (see kept.py)."""
        until = bisect_right(self._starts, position)
        kept = (part for part in reversed(self._parts[:until]) if not isinstance(part, str))
        return next((part for part in kept if text_of(part) is not None), None)

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[], None]) -> Iterator[None]:
        """Called whenever there is more, and at the end. It must not raise: that would end the run."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def last(self) -> tuple[int, Part]:
        """The newest part, with where it begins; there must be one."""
        return self._starts[-1], self._parts[-1]

    def _ring(self) -> None:
        for listener in self._listeners:
            listener()

    def _join(self) -> None:
        """Join the older texts that stand side by side; positions stay what they are."""
        until = self._joined + JOIN_AFTER
        parts: list[Part] = []
        starts: list[int] = []
        texts: list[str] = []
        for start, part in zip(
            self._starts[self._joined : until], self._parts[self._joined : until], strict=True
        ):
            if isinstance(part, str):
                if not texts:
                    starts.append(start)
                texts.append(part)
                continue
            if texts:
                parts.append("".join(texts))
                texts = []
            parts.append(part)
            starts.append(start)
        if texts:
            parts.append("".join(texts))
        self._parts[self._joined : until] = parts
        self._starts[self._joined : until] = starts
        self._joined += len(parts)


class LiveOutputs:
    """The live outputs of this process's running jobs."""

    def __init__(self, on_open: Callable[[str], None] = lambda _: None) -> None:
        self._live: dict[str, LiveOutput] = {}
        # Those who wait for the job's first word are told at once, not with its first row.
        self._on_open = on_open

    def open(self, job_id: str, run: int) -> LiveOutput:
        live = self._live[job_id] = LiveOutput(run)
        self._on_open(job_id)
        return live

    def close(self, job_id: str, live: LiveOutput, result: str | None) -> None:
        live.close(result)
        if self._live.get(job_id) is live:
            del self._live[job_id]

    def get(self, job_id: str) -> LiveOutput | None:
        return self._live.get(job_id)
