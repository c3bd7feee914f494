"""What the dashboard costs: the overview over a million jobs, and fifty of them open while jobs go on.

`make bench-dashboard`. An open dashboard is what a browser does: it holds the stream of nudges and fetches
the page for each. The goals: an answer within 150 ms, and fifty open ones within a tenth of a core.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.embedded import EmbeddedPostgres
from benchmarks import foreman, procfs
from benchmarks.growth_database import fill_finished, fill_scheduled, tidy
from benchmarks.http_client import ask, connect
from benchmarks.lab import FULL, QUICK, Lab

GOAL_MS = 150.0
GOAL_SHARE = 0.10
LOOKS = 40
HEAD = b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
STREAM = HEAD % (b"/ui/nudges", b"Accept: text/event-stream\r\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-dashboard", description=__doc__)
    parser.add_argument("--finished", type=int, default=700_000)
    parser.add_argument("--waiting", type=int, default=300_000)
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--open", type=int, default=50, help="dashboards")
    parser.add_argument("--rate", type=float, default=20.0, help="jobs per second that go on meanwhile")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="small: does it still run?")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.finished, chosen.waiting, chosen.open, chosen.seconds = 2000, 1000, 5, 5.0
    return chosen


async def answers(port: int, looks: int) -> list[float]:
    """Milliseconds that the whole page takes, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = []
    for _ in range(looks):
        began = time.perf_counter()
        writer.write(HEAD % (b"/ui", b""))
        await _read_answer(reader)
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.1)
    writer.close()
    return taken


async def dashboard(port: int, fetched: list[int]) -> None:
    """As an open tab behaves: it listens, and fetches the page for each nudge."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    page = await asyncio.open_connection("127.0.0.1", port)
    writer.write(STREAM)
    try:
        while line := await reader.readline():
            if line.startswith(b"event: nudge"):
                page[1].write(HEAD % (b"/ui", b"HX-Request: true\r\n"))
                fetched.append(await _read_answer(page[0]))
    finally:
        writer.close()
        page[1].close()


async def _read_answer(reader: asyncio.StreamReader) -> int:
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return len(await reader.readexactly(length))


async def jobs_go_on(port: int, rate: float) -> None:
    connection = await connect(port)
    while True:
        await ask(connection, "POST", "/jobs", foreman.job_body(), 202)
        await asyncio.sleep(1 / rate)


async def share_of_a_core(pid: int, seconds: float) -> float:
    before = procfs.cpu_seconds(pid) or 0.0
    await asyncio.sleep(seconds)
    return ((procfs.cpu_seconds(pid) or 0.0) - before) / seconds


async def run(lab: Lab, chosen: argparse.Namespace, console: Console) -> None:
    dsn = await lab.fresh_database("dashboard")
    async with foreman.running(lab, dsn, "all") as server:
        console.log(f"{chosen.finished:,} finished and {chosen.waiting:,} waiting jobs")
        await fill_finished(dsn, chosen.finished, chosen.queues)
        await fill_scheduled(server.port, chosen.waiting, chosen.queues)
        await tidy(dsn)
        first, *taken = await answers(server.port, LOOKS)
        work = asyncio.create_task(jobs_go_on(server.port, chosen.rate))
        await asyncio.sleep(3)
        alone = await share_of_a_core(server.service.pid, chosen.seconds)
        fetched: list[int] = []
        opened = [asyncio.create_task(dashboard(server.port, fetched)) for _ in range(chosen.open)]
        await asyncio.sleep(3)
        beside = await share_of_a_core(server.service.pid, chosen.seconds)
        for task in (work, *opened):
            task.cancel()
        await asyncio.gather(work, *opened, return_exceptions=True)
    table = Table("", "measured", "goal", title="dashboard", title_justify="left")
    table.add_row("overview, first answer, ms", f"{first:.0f}", f"{GOAL_MS:.0f}")
    table.add_row("overview, median, ms", f"{statistics.median(taken):.0f}", f"{GOAL_MS:.0f}")
    table.add_row("overview, slowest, ms", f"{max(taken):.0f}", f"{GOAL_MS:.0f}")
    table.add_row(f"CPU of the server at {chosen.rate:g} jobs/s, cores", f"{alone:.3f}", "")
    table.add_row(
        f"the same with {chosen.open} dashboards open, more by", f"{beside - alone:.3f}", f"{GOAL_SHARE:.2f}"
    )
    table.add_row("pages fetched meanwhile", f"{len(fetched)}", "")
    Console().print(table)


def main() -> None:
    chosen = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="foreman-dashboard-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", durable=not chosen.quick) as server:
            lab = Lab(server.dsn, QUICK if chosen.quick else FULL, Path(folder))
            asyncio.run(run(lab, chosen, Console(stderr=True, style="dim", log_path=False)))


if __name__ == "__main__":
    main()
