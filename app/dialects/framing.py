"""Bytes to frames and back: lines of JSON, or server-sent events.

Decoders take bytes in whatever pieces the network delivers. What is no frame raises GarbledAnswer with the
beginning of what was received.
"""

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


class FrameDecoder:
    """One stream of a target. `done` is set by the `[DONE]` of server-sent events."""

    def __init__(self, *, sse: bool) -> None:
        self._sse = sse
        self._rest = b""
        self.done = False

    def feed(self, data: bytes) -> list[Frame]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise GarbledAnswer(f"a line longer than {MAX_LINE_BYTES} bytes", _shown(self._rest))
        return [frame for line in lines for frame in self._line(line)]

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
        return [parse_frame(line)] if line else []


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
