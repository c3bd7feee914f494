"""Is it as fast with ten million finished jobs, and while nothing dead can be cleaned away?

`make bench-growth`, or `python -m benchmarks.growth --help`. Two databases on one PostgreSQL of ours: an
empty one, and one with millions of finished jobs and a million scheduled ones in ten thousand queues. Jobs
are submitted to each over HTTP at a steady rate: to a plain queue, to one whose callers take turns
(`fair_by`), to one with a limit (`max_running`). On the grown one a transaction is held open all along, so
that no vacuum can take anything away. Told is what rate was held, how long jobs waited, and what dead rows
were left.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from app.embedded import EmbeddedPostgres
from benchmarks import foreman, goals, growth_database, machine, procfs, report
from benchmarks.growth_database import Look, Run
from benchmarks.http_client import AskingConnection, ask, connect
from benchmarks.lab import FULL, QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers, percentile

RESULTS = Path(__file__).resolve().parent / "results"
QUEUES: dict[str, dict[str, object]] = {
    "plain": {},
    "fair": {"fair_by": "customer"},
    "limited": {"max_running": 64},
}
# What is still waiting when the last job was sent gets so long, at most.
DRAIN_SECONDS = 120.0
WARM_UP_SECONDS = 5.0
LIVE_STATES = ("queued", "loading", "working")
MOST_PARTS = 60
# Of the window: the end of it is where a growing trouble shows.
LAST_PART = 0.2


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    add = parser.add_argument
    add("--finished", type=int, default=10_000_000, help="finished jobs (10 million)")
    add("--scheduled", type=int, default=1_000_000, help="jobs scheduled for next month (1 million)")
    add("--queues", type=int, default=10_000, help="queues that they are spread over (10,000)")
    add("--rate", type=float, default=800, help="jobs submitted a second (800)")
    add("--seconds", type=float, default=300, help="how long the transaction is held open (300)")
    add("--empty-seconds", type=float, default=60, help="how long the empty database is measured (60)")
    add("--only", action="append", choices=list(QUEUES), help="only this queue; repeatable")
    add("--quick", action="store_true", help="small numbers: shows that it runs, no more")
    add("--json", type=Path, metavar="FILE", help="where the numbers go; by default benchmarks/results/")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.finished, chosen.scheduled, chosen.queues = 20_000, 5_000, 200
        chosen.rate, chosen.seconds, chosen.empty_seconds = 200, 3, 2
    chosen.only = chosen.only or list(QUEUES)
    return chosen


async def grow(lab: Lab, chosen: argparse.Namespace, console: Console) -> str:
    dsn = await lab.fresh_database("grown")
    async with foreman.running(lab, dsn, "api") as server:
        console.log(f"filling in {chosen.scheduled:,} scheduled jobs")
        await growth_database.fill_scheduled(server.port, chosen.scheduled, chosen.queues)
        console.log(f"filling in {chosen.finished:,} finished jobs")
        await growth_database.fill_finished(dsn, chosen.finished, chosen.queues)
    await growth_database.tidy(dsn)
    return dsn


async def measure(
    lab: Lab, dsn: str, queue: str, chosen: argparse.Namespace, *, held: bool
) -> dict[str, Any]:
    """One queue on one database: jobs at the given rate for a while, and what became of them."""
    async with foreman.running(lab, dsn, "all") as server:
        connection = await connect(server.port)
        await ask(connection, "PUT", f"/queues/{queue}", json.dumps(QUEUES[queue]).encode(), 201)
        connection.transport.close()
        await _submitted(lab, server.port, "warm-up", chosen.rate, min(WARM_UP_SECONDS, chosen.seconds))
        look = await Look.at(dsn)
        release = await growth_database.hold_open(dsn) if held else None
        try:
            seconds = chosen.seconds if held else chosen.empty_seconds
            window = await _submitted(lab, server.port, queue, chosen.rate, seconds)
            connection = await connect(server.port)
            await _until_finished(connection, queue)
            connection.transport.close()
            dead = await look.dead_tuples()
        finally:
            if release is not None:
                release()
        peak = procfs.peak_megabytes(server.service.pid)
    runs = await look.runs(queue)
    await growth_database.tidy(dsn)
    left = await look.dead_tuples()
    await look.close()
    numbers = summary(runs, window["began"], window["ended"])
    numbers |= {
        "dead_per_job": dead / len(runs),
        "dead_tuples": float(dead),
        "left_per_job": left / len(runs),
    }
    if peak is not None:
        numbers["peak_mb"] = peak
    return {**numbers, "timeline": timeline(runs, window["began"], window["ended"])}


async def _submitted(lab: Lab, port: int, queue: str, rate: float, seconds: float) -> Numbers:
    answer = await lab.measure(
        Path(sys.executable),
        "benchmarks.growth_load",
        "submit",
        port=port,
        queue=queue,
        rate=rate,
        seconds=seconds,
    )
    return as_numbers(answer)


async def _until_finished(connection: AskingConnection, queue: str) -> None:
    """All that was sent, or as much as can be waited for."""
    ends = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < ends:
        shown = cast("dict[str, dict[str, int]]", await ask(connection, "GET", f"/queues/{queue}", b"", 200))
        if not any(shown["counts"][state] for state in LIVE_STATES):
            return
        await asyncio.sleep(1)


def summary(runs: list[Run], began: float, ended: float) -> Numbers:
    """Rates are of the last part of the window; what never began counts as having waited until now."""
    from_then = ended - LAST_PART * (ended - began)
    done = [run.completed_at for run in runs if run.completed_at is not None]
    waited = [_waited(run, ended) for run in runs]
    late = [run.sent_at for run in runs if run.started_at is None or run.started_at > ended]
    return {
        "jobs": float(len(runs)),
        "per_second": sum(from_then <= at < ended for at in done) / (ended - from_then),
        "p50_ms": percentile(waited, 0.50) * 1000,
        "p99_ms": percentile(waited, 0.99) * 1000,
        "backlog_seconds": ended - min(late) if late else 0.0,
    }


def _waited(run: Run, ended: float) -> float:
    return (run.started_at if run.started_at is not None else ended + DRAIN_SECONDS) - run.sent_at


def timeline(runs: list[Run], began: float, ended: float) -> list[Numbers]:
    """The window in equal parts: what was finished in each, and how long those sent in it waited."""
    parts = max(1, min(MOST_PARTS, round(ended - began)))
    width = (ended - began) / parts
    waited: list[list[float]] = [[] for _ in range(parts)]
    finished = [0] * parts
    for run in runs:
        if 0 <= (part := int((run.sent_at - began) // width)) < parts:
            waited[part].append(_waited(run, ended))
        if run.completed_at is not None and 0 <= (part := int((run.completed_at - began) // width)) < parts:
            finished[part] += 1
    return [
        {
            "second": (part + 0.5) * width,
            "per_second": finished[part] / width,
            "p50_ms": percentile(waited[part], 0.50) * 1000,
            "p99_ms": percentile(waited[part], 0.99) * 1000,
        }
        for part in range(parts)
        if waited[part]
    ]


async def run(lab: Lab, chosen: argparse.Namespace, console: Console) -> dict[str, Any]:
    grown = await grow(lab, chosen, console)
    queues: dict[str, Any] = {}
    for queue in chosen.only:
        empty = await lab.fresh_database("empty")
        console.log(f"{queue}: {chosen.rate:g} jobs/s on an empty database")
        queues[queue] = {"empty": await measure(lab, empty, queue, chosen, held=False)}
        console.log(f"{queue}: the same on the grown one, with a transaction held open")
        queues[queue]["grown"] = await measure(lab, grown, queue, chosen, held=True)
    about = await machine.describe(lab.admin_dsn)
    names = ("finished", "scheduled", "queues", "rate", "seconds", "empty_seconds")
    return {
        **about,
        "quick": chosen.quick,
        "sizes": {name: getattr(chosen, name) for name in names},
        "queues": queues,
    }


COLUMNS = {
    "per_second": "jobs/s at the end",
    "p50_ms": "start p50 ms",
    "p99_ms": "p99 ms",
    "backlog_seconds": "backlog s",
    "dead_per_job": "dead tuples a job",
    "left_per_job": "after vacuum",
    "peak_mb": "server MB",
}


def print_table(document: dict[str, Any], console: Console) -> None:
    table = Table(title="growth: an empty and a grown database", title_justify="left")
    table.add_column("queue")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for queue, sides in document["queues"].items():
        for side, numbers in sides.items():
            table.add_row(f"{queue}, {side}", *(report.short(numbers.get(name)) for name in COLUMNS))
    console.print(table)


def main() -> None:
    chosen = parse_arguments()
    progress = Console(stderr=True, style="dim", log_path=False)
    with tempfile.TemporaryDirectory(prefix="foreman-growth-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", durable=not chosen.quick) as server:
            lab = Lab(server.dsn, QUICK if chosen.quick else FULL, Path(folder))
            document = asyncio.run(run(lab, chosen, progress))
    console = Console() if sys.stdout.isatty() else Console(width=140)
    print_table(document, console)
    goals.print_goals(goals.Measured(growth=document), console, quick=chosen.quick)
    path = chosen.json or RESULTS / f"growth-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    report.write_json(document, path)
    progress.print(f"The numbers are in {path}")


if __name__ == "__main__":
    main()
