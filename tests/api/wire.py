"""Speaking HTTP by hand, to say what no client library would."""

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Server
from tests.patience import AT_ONCE


@dataclass
class Answer:
    """What came back, until the server closed or the time was over."""

    raw: bytes
    closed: bool
    seconds: float

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.raw)]

    @property
    def body(self) -> bytes:
        return self.raw.split(b"\r\n\r\n", 1)[1] if b"\r\n\r\n" in self.raw else b""


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def say(server: Server, *parts: bytes, patience: float = AT_ONCE, keep_open: bool = False) -> Answer:
    """Send the parts, read until the server closes. `keep_open`: an answer is enough."""
    began = time.monotonic()
    with connect(server) as wire:
        for part in parts:
            wire.sendall(part)
        return listen(wire, began, patience, until_answered=keep_open)


def unread(port: int) -> int:
    """How many bytes that were sent to this port of this machine nobody has read yet."""
    left = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        to_send, to_read = queues.split(":")
        if remote.endswith(f":{port:04X}"):
            left += int(to_send, 16)
        elif local.endswith(f":{port:04X}") and not remote.endswith(":0000"):
            left += int(to_read, 16)
    return left


def _is_whole(raw: bytes) -> bool:
    """Headers and body are there; they may come in two packets."""
    head, found, body = raw.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return bool(found) and (length is None or len(body) >= int(length[1]))


def listen(wire: socket.socket, began: float, patience: float, *, until_answered: bool = False) -> Answer:
    raw = b""
    while time.monotonic() - began < patience:
        wire.settimeout(max(0.05, patience - (time.monotonic() - began)))
        try:
            data = wire.recv(65536)
        except TimeoutError:
            break
        except ConnectionResetError:
            return Answer(raw, True, time.monotonic() - began)
        if not data:
            return Answer(raw, True, time.monotonic() - began)
        raw += data
        if until_answered and _is_whole(raw):
            break
    return Answer(raw, False, time.monotonic() - began)
