"""Reading server-sent events the way a careful client does: incrementally, by the book."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

STREAM = {"Accept": "text/event-stream"}


@dataclass(frozen=True)
class Block:
    """One dispatched event."""

    id: str | None
    event: str | None
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Parser:
    def __init__(self) -> None:
        self._rest = ""
        self._data: list[str] = []
        self._event: str | None = None
        self.id: str | None = None
        self.comments = 0

    def feed(self, text: str) -> Iterator[Block]:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "data":
                    self._data.append(value)
                elif name == "event":
                    self._event = value
                elif name == "id":
                    self.id = value
                else:
                    raise AssertionError(f"an unknown field: {line!r}")
            elif self._data:
                block = Block(self.id, self._event, "\n".join(self._data))
                self._data, self._event = [], None
                yield block


def blocks(url: str, *, parser: Parser | None = None, timeout: float = 120, **more: Any) -> Iterator[Block]:
    """Until the server ends the stream."""
    parser = parser or Parser()
    headers = {**STREAM, **more.pop("headers", {})}
    with httpx.stream("GET", url, headers=headers, timeout=timeout, **more) as response:
        if response.status_code != 200:
            response.read()
            raise AssertionError(f"{response.status_code}: {response.text}")
        assert response.headers["content-type"].startswith("text/event-stream")
        for text in response.iter_text():
            yield from parser.feed(text)


def all_blocks(url: str, **more: Any) -> list[Block]:
    return list(blocks(url, **more))
