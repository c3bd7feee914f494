"""Bytes to frames and back: lines of JSON, or server-sent events.

Decoders take bytes in whatever pieces the network delivers. What is no frame raises GarbledAnswer with the
beginning of what was received.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from app.dialects.shapes import Frame, GarbledAnswer

# One frame of a stream is small; whole answers (embeddings, images) come outside of streams.
MAX_LINE_BYTES = 16 * 1024 * 1024
_SHOWN = 500

NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
SSE_DONE = b"data: [DONE]\n\n"
SSE_KEEP_ALIVE = b": waiting\n\n"

# Where the text of a chat's frame begins, and what a JSON string looks like.
_BEGINS = b'"content":'
_STRING = re.compile(rb'\s*("(?:[^"\\]|\\.)*")')
# How often the shape of a stream's frames is looked for: where each has a time of its own, no two are alike.
_ATTEMPTS = 8
_read_text = msgspec.json.Decoder(str).decode


class FrameDecoder:
    """One stream of a target. `done` is set by the `[DONE]` of server-sent events."""

    def __init__(self, *, sse: bool) -> None:
        self._sse = sse
        self._rest = b""
        self.done = False

    def feed(self, data: bytes) -> list[Frame]:
        return [frame for line in self._lines(data) for frame in self._line(line)]

    def _lines(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data if self._rest else data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise GarbledAnswer(f"a line longer than {MAX_LINE_BYTES} bytes", _shown(self._rest))
        return lines

    def finish(self) -> list[Frame]:
        """The last line need not end with a newline."""
        rest, self._rest = self._rest, b""
        return self._line(rest)

    def _line(self, line: bytes) -> list[Frame]:
        line = line.strip()
        if self._sse:
            # Comments keep the connection alive; `event:`, `id:` and `retry:` say nothing about the answer.
            if line.startswith((b":", b"event:", b"id:", b"retry:")):
                return []
            # llama.cpp and others have sent errors as a field of their own, and some as a bare object.
            line = line.removeprefix(b"data:").removeprefix(b"error:").strip()
            if line == b"[DONE]":
                self.done = True
                return []
            # llama.cpp opens a stream of several completions with nothing.
            if line == b"null":
                return []
        return [parse_frame(line)] if line else []


class TextDecoder(FrameDecoder):
    """The same for an answer most of whose frames differ in their text only.

    What stands before and behind the text is remembered from one that was parsed. A line that begins and ends
    alike, with one JSON string in between, is that very frame with another text: only the string is read.
    """

    def __init__(self, plain_text: Callable[[Frame], str | None], *, sse: bool) -> None:
        """`plain_text`: the text of a frame that says nothing else."""
        super().__init__(sse=sse)
        self._plain_text = plain_text
        self._before: bytes | None = None
        self._behind = self._ending = b""
        self._attempts = _ATTEMPTS

    def hear(self, data: bytes) -> list[Frame | str]:
        """Frames; and instead of one that only repeats the one before it, but for its text, that text."""
        before = self._before
        if before is not None and not self._rest:
            # Nearly always: one frame, no more and no less. There is no end of a line within a JSON string.
            text = self._text_between(data, before, self._ending)
            if text is not None:
                return [text]
        heard: list[Frame | str] = []
        for line in self._lines(data):
            if not line:
                continue
            before = self._before
            text = None if before is None else self._text_between(line, before, self._behind)
            if text is not None:
                heard.append(text)
                continue
            for frame in self._line(line):
                heard.append(frame)
                self._learn(line, frame)
        return heard

    def _text_between(self, data: bytes, before: bytes, behind: bytes) -> str | None:
        if not data.startswith(before) or not data.endswith(behind):
            return None
        try:
            return _read_text(data[len(before) : len(data) - len(behind)])
        except msgspec.DecodeError:
            return None

    def _learn(self, line: bytes, frame: Frame) -> None:
        self._before = None
        text = self._plain_text(frame) if self._attempts else None
        if not text:
            return
        self._attempts -= 1
        begins = line.rfind(_BEGINS)
        place = _STRING.match(line, begins + len(_BEGINS)) if begins >= 0 else None
        if place is None:
            return
        before, behind = line[: place.start(1)], line[place.end(1) :]
        # The proof: with another string in that place, it is a frame with that text.
        try:
            [probe] = self._line(before + b'"?"' + behind)
            probed = _read_text(place[1]) == text and self._plain_text(probe) == "?"
        except (ValueError, msgspec.DecodeError):
            return
        if probed:
            self._before, self._behind = before, behind
            self._ending = behind + (b"\n\n" if self._sse else b"\n")


def parse_frame(data: bytes) -> Frame:
    """One JSON object, or GarbledAnswer."""
    try:
        frame: Any = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        raise GarbledAnswer("no JSON", _shown(data)) from None
    if not isinstance(frame, dict):
        raise GarbledAnswer("no JSON object", _shown(data))
    return frame


def _shown(data: bytes) -> str:
    return data[:_SHOWN].decode("utf-8", "replace")
