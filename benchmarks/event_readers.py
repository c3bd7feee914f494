"""Readers of event streams, cheap and many, in a process of their own: what they got, and when."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import cast

from benchmarks.http_client import ask, connect, prepared_request
from benchmarks.measuring import Numbers, percentile
from benchmarks.procfs import cpu_seconds, resident_megabytes
from benchmarks.scripting import main

PATIENCE_SECONDS = 90.0
IDLE_KIND = "nobody-runs-this"


class StreamReader(asyncio.Protocol):
    """One GET whose answer is handed on as it comes."""

    def __init__(self, request: bytes, heard: Callable[[bytes], None]) -> None:
        self._request = request
        self._heard = heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._heard(data)


def stream_request(path: str, *, sse: bool = True) -> bytes:
    accept = "Accept: text/event-stream\r\n" if sse else ""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{accept}\r\n".encode()


async def open_stream(port: int, request: bytes, heard: Callable[[bytes], None]) -> StreamReader:
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: StreamReader(request, heard), "127.0.0.1", port)
    return reader


async def until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        await asyncio.sleep(0.005)


async def submit_idle(port: int, count: int) -> list[str]:
    """Jobs that stay queued."""
    connection = await connect(port)
    ids: list[str] = []
    for first in range(0, count, 1000):
        jobs = [{"kind": IDLE_KIND, "payload": {}}] * min(1000, count - first)
        answer = await ask(connection, "POST", "/jobs/batch", json.dumps({"jobs": jobs}).encode(), 202)
        ids += [each["job_id"] for each in cast("dict[str, list[dict[str, str]]]", answer)["jobs"]]
    connection.transport.close()
    return ids


class Relayed:
    """One job's answer as it is relayed; its words are the tokens."""

    def __init__(self) -> None:
        self.first_at = 0.0
        self.ended_at = 0.0
        self._rest = b""

    def heard(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.first_at and b'"content":"w' in data:
            self.first_at = now
        tail = self._rest + data
        if b'"done":true' in tail:
            self.ended_at = now
        elif b'"error"' in tail:
            raise RuntimeError(tail[-300:].decode(errors="replace"))
        self._rest = tail[-20:]


async def relay(submit_port: int, read_port: int, jobs: int, words: int) -> Numbers:
    """Tokens a second from an echo that speaks as fast as it can to readers that attached at once."""
    text = " ".join(["word"] * words)
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}]}).encode()
    connection = await connect(submit_port)
    told: list[tuple[float, Relayed]] = []
    began = time.perf_counter()
    for _ in range(jobs):
        answer = cast("dict[str, str]", await ask(connection, "POST", "/jobs", body, 202))
        submitted = time.perf_counter()
        relayed = Relayed()
        told.append((submitted, relayed))
        await open_stream(
            read_port, stream_request(f"/jobs/{answer['job_id']}/stream", sse=False), relayed.heard
        )
    await until(lambda: all(each.ended_at for _, each in told), "all streams have ended")
    seconds = max(each.ended_at for _, each in told) - began
    first = [each.first_at - submitted for submitted, each in told if each.first_at]
    return {"per_second": jobs * words / seconds, "first_ms": percentile(first, 0.5) * 1000}


class Arrivals:
    """When each event that carries its time of departure came."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.greeted = 0

    def reader(self) -> Callable[[bytes], None]:
        rest = b""

        def heard(data: bytes) -> None:
            nonlocal rest
            now = time.perf_counter()
            *blocks, rest = (rest + data).split(b"\n\n")
            for block in blocks:
                at = block.find(b'"sent":')
                if at >= 0:
                    self.latencies.append(now - float(block[at + 7 : block.index(b"}", at)]))
                elif b"event: queued" in block:
                    self.greeted += 1

        return heard


async def fanout(post_port: int, read_port: int, readers: int, events: int, rate: float) -> Numbers:
    """From just before an event is posted until it is with a reader, over all readers of the job."""
    [job_id] = await submit_idle(post_port, 1)
    arrivals = Arrivals()
    for _ in range(readers):
        await open_stream(read_port, stream_request(f"/jobs/{job_id}/events"), arrivals.reader())
    await until(lambda: arrivals.greeted == readers, "all readers are there")
    connection = await connect(post_port)
    began = time.perf_counter()
    for number in range(events):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        body = json.dumps({"type": "tick", "payload": {"sent": time.perf_counter()}}, separators=(",", ":"))
        await ask(connection, "POST", f"/jobs/{job_id}/events", body.encode(), 201)
    await until(lambda: len(arrivals.latencies) == readers * events, "every event is with every reader")
    return {
        "p50_ms": percentile(arrivals.latencies, 0.50) * 1000,
        "p99_ms": percentile(arrivals.latencies, 0.99) * 1000,
    }


async def waiting_worker(post_port: int, read_port: int, events: int) -> Numbers:
    """A worker that waits for an event with `wait` and gets it: from just before the post."""
    [job_id] = await submit_idle(post_port, 1)
    poster, worker = await connect(post_port), await connect(read_port)
    latencies = []
    for number in range(events):
        path = f"/jobs/{job_id}/events?after={number + 1}&types=approve&wait=30"
        asked = asyncio.ensure_future(worker.ask(prepared_request("GET", path)))
        # Let it arrive and wait.
        await asyncio.sleep(0.05)
        sent = time.perf_counter()
        await ask(poster, "POST", f"/jobs/{job_id}/events", b'{"type":"approve"}', 201)
        status, answer = await asked
        latencies.append(time.perf_counter() - sent)
        if status != 200 or b'"approve"' not in answer:
            raise RuntimeError(f"{status}: {answer[:200]!r}")
    return {"p50_ms": percentile(latencies, 0.50) * 1000, "p99_ms": percentile(latencies, 0.99) * 1000}


async def idle(port: int, pid: int, streams: int, seconds: float) -> Numbers:
    """What streams cost on which nothing happens."""
    ids = await submit_idle(port, streams)
    await asyncio.sleep(1)
    before = resident_megabytes(pid) or 0.0
    greeted = await come_back(port, ids, at_once=100)
    await asyncio.sleep(1)
    used, began = cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    spent = (cpu_seconds(pid) or 0.0) - (used or 0.0)
    return {
        "streams": float(greeted),
        "megabytes": (resident_megabytes(pid) or 0.0) - before,
        "core_percent": 100 * spent / (time.perf_counter() - began),
    }


async def come_back(port: int, ids: list[str], at_once: int) -> int:
    """Open a stream for each job and wait until each has heard its first event."""
    served: set[str] = set()

    def reader(job_id: str) -> Callable[[bytes], None]:
        def heard(data: bytes) -> None:
            if b"data:" in data:
                served.add(job_id)

        return heard

    for first in range(0, len(ids), at_once):
        group = ids[first : first + at_once]
        await asyncio.gather(
            *(open_stream(port, stream_request(f"/jobs/{each}/events"), reader(each)) for each in group)
        )
        opened = first + len(group)
        await until(lambda opened=opened: len(served) >= opened, "all streams are served")  # type: ignore[misc]
    return len(served)


async def storm(port: int, streams: int) -> dict[str, float]:
    """All streams come back at once; when that began, and when the last one was served."""
    ids = await submit_idle(port, streams)
    await asyncio.sleep(2)
    began = time.time()
    served = await come_back(port, ids, at_once=streams)
    ended = time.time()
    await asyncio.sleep(1)
    return {"began": began, "ended": ended, "served": float(served)}


async def probe(port: int, rate: float, seconds: float) -> list[tuple[float, float]]:
    """Submit at a steady pace over keep-alive connections: (when it was answered, how long it took)."""
    body = json.dumps({"kind": IDLE_KIND, "payload": {"text": "x" * 280}}).encode()
    request = prepared_request("POST", "/jobs", body)
    answered: list[tuple[float, float]] = []
    idle_connections = [await connect(port) for _ in range(8)]
    running: set[asyncio.Task[None]] = set()

    async def send(due: float) -> None:
        connection = idle_connections.pop() if idle_connections else await connect(port)
        status, _ = await connection.ask(request)
        if status == 202:
            answered.append((time.time(), time.perf_counter() - due))
        idle_connections.append(connection)

    began = time.perf_counter()
    for number in range(round(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.ensure_future(send(due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return answered


if __name__ == "__main__":
    main(relay, fanout, waiting_worker, idle, storm, probe)
