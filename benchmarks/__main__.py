"""Measures Foreman against others in the same run, prints ratios and keeps every round's numbers as JSON."""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
from rich.console import Console

from app.embedded import EmbeddedPostgres
from benchmarks import drain, enqueue, events, latency, passthrough, replay, report, venvs, webhooks, workers
from benchmarks.harness import Announce, Benchmark, Results, run_interleaved
from benchmarks.lab import FULL, QUICK, Lab

BENCHMARKS: dict[str, Benchmark] = {
    each.name: each
    for each in (
        *(module.BENCHMARK for module in (enqueue, drain, latency, workers, webhooks, passthrough, replay)),
        *events.BENCHMARKS,
    )
}
RESULTS = Path(__file__).resolve().parent / "results"


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", help=f"which ones: {', '.join(BENCHMARKS)}; all by default")
    add("--rounds", type=int, help="interleaved rounds, of which medians are taken (5; quick: 1)")
    add("--quick", action="store_true", help="seconds instead of minutes: shows that it runs, no more")
    add("--only", action="append", metavar="SYSTEM", help="leave the other systems out; repeatable")
    add("--postgres", metavar="DSN", help="measure on this server, as superuser, instead of our own")
    add("--json", type=Path, metavar="FILE", help="where the numbers go; by default benchmarks/results/")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(BENCHMARKS):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    systems = {system.name for benchmark in BENCHMARKS.values() for system in benchmark.systems}
    if unknown := set(chosen.only or []) - systems:
        parser.error(f"unknown system {', '.join(sorted(unknown))}; there are {', '.join(sorted(systems))}")
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 5)
    chosen.names = chosen.names or list(BENCHMARKS)
    return chosen


@contextmanager
def one_postgres(dsn: str | None, folder: Path, *, durable: bool) -> Iterator[str]:
    """The server that all systems share; ours writes to disk as in production, except in a quick run."""
    if dsn is not None:
        yield dsn
        return
    folder.chmod(0o711)  # started by root it may have to run as somebody else, who must get in
    with EmbeddedPostgres(folder / "data", durable=durable) as server:
        yield server.dsn


def prepare(benchmark: Benchmark, chosen: argparse.Namespace, announce: Announce) -> Results:
    """Find out who can take part, and why the rest cannot. A quick run installs nothing."""
    results = Results(benchmark)
    for system in benchmark.systems:
        if chosen.only and system.name not in chosen.only:
            results.skipped[system.name] = "left out"
        elif system.peer is None or venvs.is_ready(system.peer):
            continue
        elif chosen.quick:
            results.skipped[system.name] = "its venv is not there, and a quick run makes none"
        else:
            announce(f"installing {system.peer} into a venv of its own")
            try:
                venvs.make_ready(system.peer)
            except venvs.VenvError as error:
                results.failures[system.name] = str(error)
    return results


async def run_all(chosen: argparse.Namespace, lab: Lab, announce: Announce) -> list[Results]:
    all_results = [prepare(BENCHMARKS[name], chosen, announce) for name in chosen.names]
    for results in all_results:
        await run_interleaved(results, lab, chosen.rounds, announce)
    return all_results


async def postgres_version(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return str(await connection.fetchval("SHOW server_version"))
    finally:
        await connection.close()


def main() -> int:
    chosen = parse_arguments(sys.argv[1:])
    # Like Ctrl-C: whatever was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = Console(stderr=True, style="dim")
    with (
        tempfile.TemporaryDirectory(prefix="foreman-bench-") as folder,
        one_postgres(chosen.postgres, Path(folder), durable=not chosen.quick) as dsn,
    ):
        lab = Lab(dsn, QUICK if chosen.quick else FULL, Path(folder))
        version = asyncio.run(postgres_version(dsn))
        all_results = asyncio.run(run_all(chosen, lab, progress.print))
    # Piped into a file there is no width to go by, and the usual 80 columns are too few.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    for results in all_results:
        report.print_table(results, console, quick=chosen.quick)
    path = chosen.json or RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    report.write_json(report.as_document(all_results, chosen.rounds, chosen.quick, version), path)
    progress.print(f"The numbers of every round are in {path}")
    return 1 if any(results.failures for results in all_results) else 0


if __name__ == "__main__":
    sys.exit(main())
