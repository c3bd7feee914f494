"""Receivers in processes of their own, and what they were sent."""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import free_port, wait_until

PROGRAM = Path(__file__).with_name("receiver_process.py")


@dataclass
class Arrival:
    """One request as the receiver saw it."""

    at: float
    failed: bool
    headers: dict[str, str]
    body: str
    message: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.message = json.loads(self.body)

    @property
    def job_id(self) -> str:
        return str(self.message["data"]["job_id"])

    @property
    def seq(self) -> int:
        return int(self.message["data"]["seq"])


@dataclass
class ReceiverProcess:
    port: int
    log_path: Path
    temper: str
    share: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/hook"

    def start(self) -> "ReceiverProcess":
        command = [
            sys.executable,
            str(PROGRAM),
            str(self.port),
            str(self.log_path),
            self.temper,
            str(self.share),
        ]
        self.process = subprocess.Popen(command)
        wait_until(self._listens, 20, lambda: f"no receiver on port {self.port}")
        return self

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def arrivals(self) -> list[Arrival]:
        if not self.log_path.exists():
            return []
        lines = self.log_path.read_bytes().split(b"\n")
        # The last line may be half written by a process that was killed.
        return [Arrival(**json.loads(line)) for line in lines[:-1]]

    def count(self) -> int:
        return self.log_path.read_bytes().count(b"\n") if self.log_path.exists() else 0


MakeReceiver = Callable[..., ReceiverProcess]


@pytest.fixture
def make_receiver(tmp_path: Path) -> Iterator[MakeReceiver]:
    """Start receivers: make_receiver("flaky", 0.33)."""
    receivers: list[ReceiverProcess] = []

    def make(temper: str = "ok", share: float = 0.0) -> ReceiverProcess:
        log_path = tmp_path / f"receiver-{len(receivers)}.jsonl"
        receiver = ReceiverProcess(free_port(), log_path, temper, share)
        receivers.append(receiver)
        return receiver.start()

    yield make
    for receiver in receivers:
        receiver.kill()


@pytest.fixture
def receiver(make_receiver: MakeReceiver) -> ReceiverProcess:
    return make_receiver()
