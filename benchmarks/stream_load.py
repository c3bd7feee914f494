"""Callers who stream: how long until the first word, and until the last, with so many of them at once."""

import asyncio
import json
import re
import time

from benchmarks.measuring import Numbers, percentile
from benchmarks.scripting import main

CALL_SECONDS = 60.0
# What every surface's frames have once there is something in them.
WORD = re.compile(rb'"content": ?"[^"]')


class Caller:
    """One connection, one stream after the other."""

    def __init__(self, port: int, path: str, body: bytes, token: str) -> None:
        self._port = port
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {token}", f"Content-Length: {len(body)}", "", ""]
        self._request = "\r\n".join(lines).encode() + body
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def call(self) -> tuple[float, float]:
        """Seconds until the first word and until the end."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        reader = self._reader
        began = time.perf_counter()
        self._writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{head[:200]!r} {await reader.read(500)!r}")
        first = 0.0
        while True:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            chunk = await reader.readexactly(size + 2)
            if not size:
                break
            if not first and _says_something(chunk):
                first = time.perf_counter() - began
        total = time.perf_counter() - began
        if not first:
            raise RuntimeError("a stream without a word")
        return first, total

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _says_something(chunk: bytes) -> bool:
    """A role alone comes with a content that is empty or null."""
    return WORD.search(chunk) is not None


async def streams(
    port: int, path: str, body: str, callers: int, warmup: int, calls: int, token: str
) -> Numbers:
    """Every caller makes so many calls; those of the warm-up do not count."""
    encoded = body.encode()
    firsts: list[float] = []
    totals: list[float] = []

    async def keep_calling(number: int) -> None:
        caller = Caller(port, path, encoded, token)
        # Callers that begin in the same moment would measure each other.
        await asyncio.sleep(number * 0.013)
        for turn in range(warmup + calls):
            first, total = await asyncio.wait_for(caller.call(), CALL_SECONDS)
            if turn >= warmup:
                firsts.append(first)
                totals.append(total)
        caller.close()

    await asyncio.gather(*(keep_calling(number) for number in range(callers)))
    return {
        "ttft_p50_ms": percentile(firsts, 0.50) * 1000,
        "ttft_p99_ms": percentile(firsts, 0.99) * 1000,
        "total_p50_ms": percentile(totals, 0.50) * 1000,
        "total_p99_ms": percentile(totals, 0.99) * 1000,
    }


def chat_body(model: str) -> str:
    return json.dumps(
        {"model": model, "stream": True, "messages": [{"role": "user", "content": "tell me a story"}]}
    )


if __name__ == "__main__":
    main(streams)
