"""Events of a job, and a parser for server-sent events that knows nothing of sockets."""

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from foreman_client.job import TERMINAL_STATES
from foreman_client.wire import decode, moment

STATE_TYPES = frozenset({"queued", "loading", "working", *TERMINAL_STATES})
# Everything else was posted by somebody.
BUILT_IN_TYPES = STATE_TYPES | {"progress", "log", "output", "cancel_requested", "late_settlement"}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's log; `seq` is gapless from 1."""

    seq: int
    type: str
    state: str | None = None
    reason: str | None = None
    data: Any = None
    at: datetime | None = None

    @property
    def terminal(self) -> bool:
        return self.type in TERMINAL_STATES

    @property
    def payload(self) -> Any:
        """What a caller sent along with `send_event`."""
        return self.data

    @property
    def text(self) -> str:
        """The piece of text that an `output` event carries, else nothing."""
        return output_text(self.data) if self.type == "output" else ""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> "Event":
        return cls(
            seq=int(data["seq"]),
            type=data["type"],
            state=data.get("state"),
            reason=data.get("reason"),
            data=data.get("data"),
            at=moment(data.get("at")),
        )


def output_text(data: Any) -> str:
    """Text of an output event's data: a string, or an object in one of the dialects' own shapes."""
    if isinstance(data, str):
        return data
    if isinstance(data, list):
        return "".join(map(output_text, data))
    if not isinstance(data, Mapping):
        return ""
    for name in ("text", "content", "response"):
        if isinstance(data.get(name), str):
            return str(data[name])
    return output_text(data.get("message") or data.get("frames"))


class ServerSentEvents:
    """Bytes in, events out; a frame may come in any number of pieces."""

    def __init__(self) -> None:
        # Incremental: a character of several bytes may be cut between two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        self._text = (self._text + self._decoder.decode(chunk)).replace("\r\n", "\n")
        *lines, self._text = self._text.split("\n")
        for line in lines:
            if line.startswith("data:"):
                self._data.append(line[5:].removeprefix(" "))
            elif not line and self._data:
                frame = decode("\n".join(self._data))
                self._data.clear()
                yield Event.from_wire(frame)
