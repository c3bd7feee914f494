"""The load generator, in a process of its own: keep-alive connections, each always with one request open."""

import asyncio
import time
from collections.abc import Callable
from itertools import count

from benchmarks.http_client import HttpConnection, prepared_request
from benchmarks.measuring import Numbers, rate_and_latency
from benchmarks.procfs import cpu_seconds
from benchmarks.scripting import main


class LoadRun:
    """What all connections of one run share: the request, the clock and the tally."""

    def __init__(self, next_request: Callable[[], bytes], expected_status: int) -> None:
        self.next_request = next_request
        self.expected_status = expected_status
        self.durations: list[float] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = False

    def fail(self, reason: Exception) -> None:
        if not self.over and not self.failed.done():
            self.failed.set_exception(reason)


class ClosedLoopConnection(HttpConnection):
    """Sends the next request as soon as the last was answered, until the run is over."""

    def __init__(self, run: LoadRun) -> None:
        super().__init__()
        self._run = run
        self._sent_at = 0.0

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self.transport.write(self._run.next_request())

    def responded(self, status: int, body: bytes) -> None:
        run = self._run
        if run.over:
            return
        if status != run.expected_status:
            run.fail(RuntimeError(f"expected {run.expected_status}, got {status}: {body[:300]!r}"))
            return
        run.durations.append(time.perf_counter() - self._sent_at)
        self.send()

    def broke(self, reason: Exception) -> None:
        self._run.fail(reason)


def with_keys(request: bytes) -> Callable[[], bytes]:
    """The same request each time, but with an idempotency key and a trace of its own."""
    line, _, rest = request.partition(b"\r\n")
    template = (
        line.replace(b"%", b"%%")
        + b"\r\nIdempotency-Key: bench-%016x\r\ntraceparent: 00-%032x-%016x-01\r\n"
        + rest.replace(b"%", b"%%")
    )
    numbers = count(1)

    def next_request() -> bytes:
        number = next(numbers)
        return template % (number, number, number)

    return next_request


async def _window(run: LoadRun, seconds: float) -> None:
    """Let the run go on for a while, unless it fails first."""
    await asyncio.wait({run.failed}, timeout=seconds)
    if run.failed.done():
        run.failed.result()


async def load(
    port: int,
    body: str,
    connections: int,
    warmup: float,
    seconds: float,
    server_pid: int,
    key: str | None,
) -> Numbers:
    """Requests per second and their latency, and what they cost the server and this client in CPU."""
    request = prepared_request("POST", "/jobs", body.encode(), key)
    run = LoadRun(lambda: request, 202)
    return await _loaded(run, port, connections, warmup, seconds, server_pid)


async def load_keyed(
    port: int,
    body: str,
    connections: int,
    warmup: float,
    seconds: float,
    server_pid: int,
    key: str | None,
) -> Numbers:
    """The same, each with an idempotency key and a trace of its own."""
    run = LoadRun(with_keys(prepared_request("POST", "/jobs", body.encode(), key)), 202)
    return await _loaded(run, port, connections, warmup, seconds, server_pid)


async def load_batches(
    port: int, body: str, rows: int, connections: int, warmup: float, seconds: float, server_pid: int
) -> Numbers:
    """`POST /jobs/batch`, so many of the given job each time; counted in calls."""
    batch = f'{{"jobs":[{",".join([body] * rows)}]}}'
    request = prepared_request("POST", "/jobs/batch", batch.encode())
    return await _loaded(LoadRun(lambda: request, 202), port, connections, warmup, seconds, server_pid)


async def _loaded(
    run: LoadRun, port: int, connections: int, warmup: float, seconds: float, server_pid: int
) -> Numbers:
    opened: list[ClosedLoopConnection] = []
    try:
        for _ in range(connections):
            connection = await _open(run, port)
            opened.append(connection)
            connection.send()
        await _window(run, warmup)
        return await _measure(run, seconds, server_pid)
    finally:
        run.over = True
        for connection in opened:
            connection.transport.close()


async def _open(run: LoadRun, port: int) -> ClosedLoopConnection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: ClosedLoopConnection(run), "127.0.0.1", port)
    return connection


async def _measure(run: LoadRun, seconds: float, server_pid: int) -> Numbers:
    run.durations.clear()
    began, cpu, server_cpu = time.perf_counter(), time.process_time(), cpu_seconds(server_pid)
    await _window(run, seconds)
    while not run.durations:  # on a machine that stalls the window is as long as one answer takes
        await _window(run, seconds)
    took = time.perf_counter() - began
    numbers = rate_and_latency(run.durations, took)
    numbers["client_cpu_share"] = (time.process_time() - cpu) / took
    server_cpu_now = cpu_seconds(server_pid)
    if server_cpu is not None and server_cpu_now is not None:
        numbers["server_cpu_us"] = (server_cpu_now - server_cpu) / len(run.durations) * 1e6
    return numbers


if __name__ == "__main__":
    main(load, load_keyed, load_batches)
