"""Starts Python programs without the second and a half that importing the libraries takes.

    process = started("app", ["serve"], environment, log)

is `python -m app serve` in a process of its own: forked from a process that has imported the libraries, and nothing
else, before. The program's own modules are read anew each time, its environment, signals and output are those it
would have been started with. Whatever still runs when the tests end, or are killed, is killed.
"""

import contextlib
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
# What `foreman serve` imports. One that is missing here costs time and nothing else.
LIBRARIES = (
    "alembic.command",
    "alembic.context",
    "asyncpg",
    "cronsim",
    "cryptography.hazmat.primitives.ciphers.aead",
    "fastapi.applications",
    "fastapi.openapi.utils",
    "httptools",
    "httpx",
    "idna",
    "jsonschema_rs",
    "msgspec",
    "obstore.store",
    "orjson",
    "prometheus_client",
    "pydantic",
    "rich.console",
    "rich.traceback",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.ext.asyncio",
    "sqlmodel",
    "structlog",
    "tenacity",
    "typer",
    "ulid",
    "uvicorn",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.on",
    "uvloop",
)
REQUEST_BYTES = 256 * 1024


class Process(Protocol):
    """What the tests use of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> Any: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class ForkedProcess:
    """A child of the fork server, which tells by a pipe its number and, in the end, its exit code."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.returncode: int | None = None
        self.pid = int(self._line())

    def _line(self) -> str:
        said = b""
        while not said.endswith(b"\n"):
            byte = os.read(self._status, 1)
            if not byte:
                raise RuntimeError("the fork server is gone")
            said += byte
        return said.decode()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._line())
            os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._status], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        # Its number is not given away before it has been reaped, of which the pipe tells.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """One a test process, started when it is first needed."""

    def __init__(self) -> None:
        self._started: list[ForkedProcess] = []
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forkserver", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> ForkedProcess:
        request = json.dumps([module, list(arguments), dict(environment)]).encode()
        ours, theirs = os.pipe()
        try:
            socket.send_fds(self._control, [request], [log.fileno(), theirs])
        finally:
            os.close(theirs)
        process = ForkedProcess(ours)
        self._started.append(process)
        return process

    def close(self) -> list[str]:
        """Its children are killed with it; says which still ran."""
        left = [f"{process.pid} (forked)" for process in self._started if process.poll() is None]
        self._control.close()
        self._process.wait()
        return left


_lock = threading.Lock()
_running: ForkServer | None = None


def started(module: str, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Process:
    """`python -m module arguments…` with this environment, its output in the log."""
    global _running  # noqa: PLW0603 - one for all tests of this process, ended by `close`
    if sys.platform != "linux":  # elsewhere forking is not safe once libraries are loaded
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    with _lock:
        if _running is None:
            _running = ForkServer()
    return _running.start(module, arguments, environment, log)


def close() -> list[str]:
    """End it, and with it what still runs; says what that was."""
    global _running
    with _lock:
        server, _running = _running, None
    return [] if server is None else server.close()


@dataclass
class _Program:
    """What a forked child is to become."""

    module: str
    arguments: list[str]
    environment: dict[str, str]

    def run(self) -> None:
        sys.argv = [self.module, *self.arguments]
        os.environ.clear()
        os.environ.update(self.environment)
        # The C library read the clock's zone before the environment was this one.
        time.tzset()
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


def _serve(control: socket.socket) -> _Program | None:
    """Fork a child a request until the tests are gone. Returns in each child, with what it is to become."""
    children: dict[int, tuple[int, int]] = {}  # by the descriptor of the process: its number, its pipe
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    pid, status = children.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    _tell(status, code)
                    os.close(status)
                    continue
                request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
                if not request:
                    for pid, _ in children.values():
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                    return None
                log, status = descriptors
                pid = os.fork()
                if pid == 0:
                    os.dup2(log, 1)
                    os.dup2(log, 2)
                    for descriptor in (log, status, control.detach(), *children):
                        os.close(descriptor)
                    for _, other in children.values():
                        os.close(other)
                    return _Program(*json.loads(request))
                os.close(log)
                _tell(status, pid)
                watched = os.pidfd_open(pid)
                children[watched] = pid, status
                selector.register(watched, selectors.EVENT_READ)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        os.write(status, b"%d\n" % number)


def main() -> None:
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    # Ctrl-C in the terminal is for the tests, who then end this.
    default = signal.signal(signal.SIGINT, signal.SIG_IGN)
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        signal.signal(signal.SIGINT, default)
        program.run()


if __name__ == "__main__":
    main()
