"""A webhook receiver in a process of its own, of one temper: it writes down what it is sent, then answers.

python receiver_process.py PORT LOG TEMPER [SHARE]
Tempers: ok, flaky (500 for SHARE of the requests), drip (a byte a second), huge (1 GB), bomb (gz), a status.
"""

import asyncio
import gzip
import json
import os
import random
import sys
import time
from typing import cast

import httptools
import uvloop

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
BOMB = gzip.compress(bytes(8 * 1024 * 1024), 9)


class Receiver(asyncio.Protocol):
    def __init__(self, log: int, temper: str, share: float) -> None:
        self._log = log
        self._temper = temper
        self._share = share
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[str, str] = {}
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        at = time.time()
        fails = self._temper == "flaky" and random.random() < self._share
        entry = {"at": at, "failed": fails, "headers": self._headers, "body": self._body.decode()}
        os.write(self._log, json.dumps(entry).encode() + b"\n")
        self._headers, self._body = {}, b""
        self._answer(fails)

    def _answer(self, fails: bool) -> None:
        write = self._transport.write
        match self._temper:
            case "ok" | "flaky":
                write(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n" if fails else OK)
            case "drip":
                write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                self._drip()
            case "huge":
                write(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")
                self._flood()
            case "bomb":
                head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(BOMB)}\r\n\r\n"
                write(head.encode() + BOMB)
            case status:
                write(f"HTTP/1.1 {status} As asked\r\ncontent-length: 0\r\n\r\n".encode())

    def _drip(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"x")
            asyncio.get_running_loop().call_later(1, self._drip)

    def _flood(self) -> None:
        if not self._transport.is_closing() and self._transport.get_write_buffer_size() < 1 << 20:
            self._transport.write(bytes(1 << 16))
        if not self._transport.is_closing():
            asyncio.get_running_loop().call_later(0.005, self._flood)


async def main(port: int, log_path: str, temper: str, share: float) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Receiver(log, temper, share), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    _, port, log_path, temper, *share = sys.argv
    uvloop.run(main(int(port), log_path, temper, float(share[0]) if share else 0.0))
