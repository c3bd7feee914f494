"""Child processes: measuring scripts that answer in JSON, and services that run until they are stopped."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

# Only ends what hangs: the longest submits for five minutes.
SCRIPT_SECONDS = 900.0
STOP_SECONDS = 30.0
MAX_LINE_BYTES = 16 * 1024 * 1024


def script_command(python: Path, module: str, verb: str, arguments: dict[str, object]) -> list[str]:
    return [str(python), "-m", module, verb, json.dumps(arguments)]


async def run_script(command: list[str], *, cwd: Path) -> object:
    """What the script says last, as JSON; an error carries the end of what it complained about."""
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, complaints = await asyncio.wait_for(child.communicate(), SCRIPT_SECONDS)
    except BaseException:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        raise
    if child.returncode != 0:
        what = " ".join(word for word in command[1:-1] if word != "-m")
        raise RuntimeError(f"{what} failed ({child.returncode}): {_tail(complaints)}")
    answer: object = json.loads(out.splitlines()[-1])
    return answer


class Service:
    """A process under test. What it says goes to a file, or is read here line by line if it `answers`."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        *,
        cwd: Path,
        log_path: Path,
        answers: bool = False,
        before_end: Callable[[int], None] | None = None,
    ) -> None:
        self._command = command
        self._answers = answers
        self._before_end = before_end
        self._environment = environment
        self._cwd = cwd
        self._log_path = log_path
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._log_path.open("wb") as log:
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._cwd,
                env=_neutral_environment() | self._environment,
                stdout=asyncio.subprocess.PIPE if self._answers else log,
                stderr=log,
                limit=MAX_LINE_BYTES,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def child(self) -> asyncio.subprocess.Process:
        assert self._child is not None, "the service was not started"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    def must_be_running(self) -> None:
        if self.child.returncode is not None:
            complaints = _tail(self._log_path.read_bytes())
            raise RuntimeError(f"{self._command[1:4]} ended ({self.child.returncode}): {complaints}")

    async def next_line(self, timeout: float) -> bytes:
        assert self.child.stdout is not None
        line = await asyncio.wait_for(self.child.stdout.readline(), timeout)
        if not line:
            await self.child.wait()
            self.must_be_running()
        return line

    async def stop(self) -> bytes:
        """End it as an operator would; returns the rest of its answers."""
        if self.child.returncode is None:
            if self._before_end is not None:
                self._before_end(self.pid)
            with suppress(ProcessLookupError):
                self.child.send_signal(signal.SIGTERM)
        try:
            rest, _ = await asyncio.wait_for(self.child.communicate(), STOP_SECONDS)
        except TimeoutError:
            self.child.kill()
            rest, _ = await self.child.communicate()
        return rest or b""


def _neutral_environment() -> dict[str, str]:
    """Ours, less what would configure a server behind the harness's back."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FOREMAN_", "PG"))}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _tail(said: bytes, size: int = 1500) -> str:
    return said[-size:].decode(errors="replace").strip() or "it said nothing"
