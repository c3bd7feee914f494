"""Bytes to frames and back: NDJSON for Ollama, server-sent events for OpenAI.

Decoders take bytes in whatever pieces the network delivers. What is no frame raises GarbledAnswer with the
beginning of what was received.
"""

from typing import Any

import msgspec

from app.dialects.shapes import Dialect, Frame, GarbledAnswer

# One frame of a stream is small; whole answers (embeddings, images) come outside of streams.
MAX_LINE_BYTES = 16 * 1024 * 1024
_SHOWN = 500

SSE_DONE = b"data: [DONE]\n\n"
SSE_KEEP_ALIVE = b": waiting\n\n"


class FrameDecoder:
    """One stream of a target. `done` is set by OpenAI's `[DONE]`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
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
        if self._dialect == "openai":
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


def encode_frame(frame: Frame, dialect: Dialect) -> bytes:
    body = msgspec.json.encode(frame)
    return body + b"\n" if dialect == "ollama" else b"data: " + body + b"\n\n"


def _shown(data: bytes) -> str:
    return data[:_SHOWN].decode("utf-8", "replace")
