"""Starting, steering and stopping the fakes from a test.

with FakeOllama(swap_seconds=1.0, models=["a", "b"]) as ollama:
    ollama.control(token_seconds=0.05)
    …
    ollama.stop(); ollama.start()   # away, and back on the same port
"""

import http.client
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.patience import PATIENCE, wait_until

_ROOT = Path(__file__).resolve().parents[2]


class ChildProcess:
    """A server in a child process: says `listening on PORT` once it is ready, and ends with its parent."""

    def __init__(self, module: str, arguments: list[str], port: int = 0) -> None:
        self._module = module
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, timeout: float = 15.0) -> Self:
        if self._process is not None:
            raise RuntimeError("it runs already")
        command = [sys.executable, "-m", self._module, "--port", str(self.port), *self._arguments]
        self._process = subprocess.Popen(
            [*command, "--exit-with-parent"], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self.port = self._read_port(time.monotonic() + timeout * PATIENCE)
        except Exception:
            self.kill()
            raise
        return self

    def _read_port(self, deadline: float) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"{self._module} did not start in time; it said {said!r}")
                more = os.read(output.fileno(), 1000)
                if not more:
                    raise RuntimeError(f"{self._module} ended with {self._process.wait()}")
                said += more
        return int(said.split(b"\n")[0].rpartition(b" ")[2])

    def stop(self) -> None:
        """As Ctrl-C does: connections are dropped, the port is free."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def pause(self) -> None:
        """A laptop whose lid was just closed: connections are accepted by the kernel and never answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


class FakeOllama(ChildProcess):
    """The knobs are those of `tests.fakes.config.Config`; they survive a restart."""

    def __init__(self, port: int = 0, **knobs: Any) -> None:
        self._knobs = knobs
        super().__init__("tests.fakes.ollama", [], port)

    def start(self, timeout: float = 15.0) -> Self:
        self._arguments = ["--config", json.dumps(self._knobs)]
        return super().start(timeout)

    def control(self, **changes: Any) -> dict[str, Any]:
        """Turns knobs; also `reset_stats=True` and `unload=["model"]`. Answers config and stats."""
        answer = self._call("POST", json.dumps(changes).encode())
        self._knobs |= {k: v for k, v in changes.items() if k not in {"reset_stats", "unload"}}
        return answer

    def stats(self) -> dict[str, Any]:
        answered: dict[str, Any] = self._call("GET", None)["stats"]
        return answered

    def log(self, *events: str) -> list[dict[str, Any]]:
        """What happened, oldest first: `load`, `chat`, `generate`, `embed`, `loaded`, `unloaded` …"""
        return [entry for entry in self.stats()["log"] if not events or entry["event"] in events]

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], timeout: float = 10.0) -> dict[str, Any]:
        """The stats, as soon as they fulfil the condition."""

        def fulfilling() -> dict[str, Any] | None:
            stats = self.stats()
            return stats if condition(stats) else None

        found = wait_until(fulfilling, timeout, lambda: f"not within {timeout} s: {self.stats()}")
        assert found is not None
        return found

    def _call(self, method: str, body: bytes | None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, "/_control", body)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(answer["error"])
        return answer
