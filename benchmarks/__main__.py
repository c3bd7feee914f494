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

from rich.console import Console

from app.embedded import EmbeddedPostgres
from benchmarks import (
    bulk,
    crowd,
    drain,
    enqueue,
    events,
    goals,
    latency,
    machine,
    memory,
    passthrough,
    replay,
    report,
    webhooks,
    workers,
)
from benchmarks.harness import Announce, Benchmark, Results, run_rounds
from benchmarks.lab import FULL, QUICK, Lab
from benchmarks.venvs import CannotInstall

BENCHMARKS: dict[str, Benchmark] = {
    each.name: each
    for each in (
        *(module.BENCHMARK for module in (enqueue, bulk, drain, workers)),
        *latency.BENCHMARKS,
        *(module.BENCHMARK for module in (webhooks, passthrough, memory, replay, crowd)),
        *events.BENCHMARKS,
    )
}
RESULTS = Path(__file__).resolve().parent / "results"


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "names",
        nargs="*",
        help=f"which ones: {', '.join(BENCHMARKS)}; all by default, in a quick run those with a goal",
    )
    add("--rounds", type=int, help="interleaved rounds, of which medians are taken (3; quick: 1)")
    add("--minutes", type=float, default=25.0, help="no further round is begun that would not fit in (25)")
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
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 3)
    chosen.names = chosen.names or [
        each.name for each in BENCHMARKS.values() if not (chosen.quick and each.is_aside)
    ]
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
        elif chosen.quick and system.is_slow_to_start and not chosen.only:
            results.skipped[system.name] = "it takes long to start, and this is a quick run"
        elif system.peer is None or system.peer.packages.is_ready():
            continue
        elif chosen.quick:
            results.skipped[system.name] = "it is not installed, and a quick run installs nothing"
        else:
            announce(f"installing {system.peer.name} into a folder of its own")
            try:
                system.peer.packages.make_ready()
            except CannotInstall as problem:
                results.skipped[system.name] = str(problem)
    return results


async def run_all(chosen: argparse.Namespace, lab: Lab, announce: Announce) -> tuple[list[Results], int]:
    """What came out, and of how many rounds."""
    all_results = [prepare(BENCHMARKS[name], chosen, announce) for name in chosen.names]
    rounds = await run_rounds(all_results, lab, chosen.rounds, announce, chosen.minutes * 60)
    return all_results, rounds


def main() -> int:
    chosen = parse_arguments(sys.argv[1:])
    # Like Ctrl-C: whatever was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = Console(stderr=True, style="dim", log_path=False)
    with (
        tempfile.TemporaryDirectory(prefix="foreman-bench-") as folder,
        one_postgres(chosen.postgres, Path(folder), durable=not chosen.quick) as dsn,
    ):
        lab = Lab(dsn, QUICK if chosen.quick else FULL, Path(folder))
        all_results, rounds = asyncio.run(run_all(chosen, lab, progress.log))
        about = asyncio.run(machine.describe(dsn))
    # Piped into a file there is no width to go by, and the usual 80 columns are too few.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    for results in all_results:
        report.print_table(results, console)
    document = report.as_document(all_results, rounds, chosen.quick, about)
    goals.print_goals(goals.Measured(bench=document), console, quick=chosen.quick)
    path = chosen.json or RESULTS / f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    report.write_json(document, path)
    progress.print(f"The numbers of every round are in {path}")
    return 1 if any(results.failures for results in all_results) else 0


if __name__ == "__main__":
    sys.exit(main())
