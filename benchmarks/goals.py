"""What we want to reach, declared once: each figure, how it is found in the results, and its limit.

Both commands end with this table. A figure that was not measured in a run says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.peering import GRAPHILE_WORKER, PG_BOSS, PGQUEUER, QUEUES

Document = Mapping[str, Any]
FOREMAN = "foreman"
OTHER_QUEUES = tuple(peer.name for peer in QUEUES)


@dataclass(frozen=True)
class Measured:
    """The documents that `make bench` and `make bench-growth` leave behind."""

    bench: Document | None = None
    growth: Document | None = None

    def rounds(self, benchmark: str) -> list[Mapping[str, Mapping[str, float]]]:
        benchmarks = self.bench["benchmarks"] if self.bench else {}
        return list(benchmarks[benchmark]["rounds"]) if benchmark in benchmarks else []

    def grown(self, queue: str) -> Mapping[str, Mapping[str, float]] | None:
        found: Mapping[str, Mapping[str, float]] | None = (
            self.growth["queues"].get(queue) if self.growth else None
        )
        return found


Figure = Callable[[Measured], float | None]


@dataclass(frozen=True)
class Goal:
    """`row` is what it is about, `what` one figure of it, reached on one side of the limit."""

    row: str
    what: str
    sign: Literal["≥", "≤"]
    limit: float
    unit: str
    figure: Figure

    def reached(self, value: float) -> bool:
        return value >= self.limit if self.sign == "≥" else value <= self.limit

    def wanted(self) -> str:
        return f"{self.sign} {_number(self.limit)}{self.unit}"

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        return "reached" if self.reached(value) else "not reached"


# --- how a figure is found


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def middle(benchmark: str, metric: str, system: str = FOREMAN) -> Figure:
    """The median over the rounds."""

    def figure(measured: Measured) -> float | None:
        rounds = measured.rounds(benchmark)
        return _median([each[system][metric] for each in rounds if metric in each.get(system, {})])

    return figure


def ratio(benchmark: str, to: str, system: str = FOREMAN, metric: str = "per_second") -> Figure:
    """`system` divided by `to` within each round, then the median."""
    return best_ratio(benchmark, (to,), system, metric)


def best_ratio(
    benchmark: str, to: Sequence[str], system: str = FOREMAN, metric: str = "per_second"
) -> Figure:
    """The same, by the best of them in each round."""

    def figure(measured: Measured) -> float | None:
        ratios = []
        for each in measured.rounds(benchmark):
            theirs = [each[name][metric] for name in to if each.get(name, {}).get(metric)]
            if theirs and metric in each.get(system, {}):
                ratios.append(each[system][metric] / max(theirs))
        return _median(ratios)

    return figure


def highest(metric: str) -> Figure:
    """The most that any turn of any benchmark, growth included, has seen."""

    def figure(measured: Measured) -> float | None:
        seen = [
            numbers[metric]
            for benchmark in (measured.bench["benchmarks"] if measured.bench else ())
            for each in measured.rounds(benchmark)
            for numbers in each.values()
            if metric in numbers
        ]
        if measured.growth:
            sides = [side for queue in measured.growth["queues"].values() for side in queue.values()]
            seen += [side[metric] for side in sides if metric in side]
        return max(seen, default=None)

    return figure


def grown(queue: str, metric: str) -> Figure:
    def figure(measured: Measured) -> float | None:
        sides = measured.grown(queue)
        return sides["grown"].get(metric) if sides else None

    return figure


def grown_ratio(queue: str, metric: str) -> Figure:
    """The grown database's figure divided by the empty one's."""

    def figure(measured: Measured) -> float | None:
        sides = measured.grown(queue)
        if not sides or not sides["empty"].get(metric):
            return None
        return sides["grown"][metric] / sides["empty"][metric]

    return figure


# --- the goals

ENQUEUE = "`POST /jobs`, one by one, 64 connections"
AUTHENTICATED = "foreman, API key"
KEY = "with an API key"
KEYED = "the same with idempotency key and traceparent"
BULK = "`POST /jobs/batch` of 1000, 4 callers"
DRAIN = "drain, in-process `noop`"
WORKERS = "drain over HTTP with `foreman_client.Worker`"
START = "enqueue → start"
WEBHOOK = "webhook: state change → receipt"
PASSTHROUGH = "passthrough, 16 words"
CROWD = "beside others, ÷ alone"
MEMORY = "memory of the server"
GROWN_QUEUES = {
    "plain": "growth, plain queue",
    "fair": "growth, queue with `fair_by`",
    "limited": "growth, queue with `max_running` 64",
}


def _growth_goals(queue: str, row: str) -> tuple[Goal, ...]:
    return (
        Goal(row, "rate ÷ empty", "≥", 0.9, " ×", grown_ratio(queue, "per_second")),
        Goal(row, "start p99 ÷ empty", "≤", 3.0, " ×", grown_ratio(queue, "p99_ms")),
        Goal(row, "backlog at the end", "≤", 1.0, " s", grown(queue, "backlog_seconds")),
        Goal(row, "dead tuples a job, transaction still open", "≤", 10, "", grown(queue, "dead_per_job")),
        Goal(row, "the same once it ended and vacuum ran", "≤", 0.01, "", grown(queue, "left_per_job")),
    )


GOALS: tuple[Goal, ...] = (
    Goal(ENQUEUE, "÷ bare route", "≥", 0.5, " ×", ratio("enqueue", "bare route")),
    Goal(ENQUEUE, "server CPU a job", "≤", 110, " µs", middle("enqueue", "server_cpu_us")),
    Goal(ENQUEUE, "÷ best peer, in process", "≥", 3.5, " ×", best_ratio("enqueue", OTHER_QUEUES)),
    Goal(KEY, "enqueue ÷ without", "≥", 0.95, " ×", ratio("enqueue", FOREMAN, system=AUTHENTICATED)),
    Goal(KEY, "drain ÷ without", "≥", 0.95, " ×", ratio("drain", FOREMAN, system=AUTHENTICATED)),
    Goal(
        KEY,
        "last word, 16 callers ÷ without",
        "≤",
        1.05,
        " ×",
        ratio("passthrough", FOREMAN, system=AUTHENTICATED, metric="total_p50_ms_16"),
    ),
    Goal(KEYED, "÷ without", "≥", 0.8, " ×", ratio("enqueue", FOREMAN, system="foreman, keyed")),
    Goal(BULK, "÷ raw `unnest` insert", "≥", 0.5, " ×", ratio("bulk", "raw inserts")),
    Goal(DRAIN, "÷ PgQueuer", "≥", 1.7, " ×", ratio("drain", PGQUEUER.name)),
    Goal(DRAIN, "÷ pg-boss", "≥", 1.0, " ×", ratio("drain", PG_BOSS.name)),
    Goal(DRAIN, "÷ graphile-worker", "≥", 0.75, " ×", ratio("drain", GRAPHILE_WORKER.name)),
    Goal(WORKERS, "÷ PgQueuer, which needs no HTTP", "≥", 0.9, " ×", ratio("workers", PGQUEUER.name)),
    Goal(START, "50/s, p50", "≤", 3, " ms", middle("latency", "p50_ms")),
    Goal(START, "50/s, p99", "≤", 12, " ms", middle("latency", "p99_ms")),
    Goal(START, "800/s, p50", "≤", 3, " ms", middle("busy", "p50_ms")),
    Goal(START, "800/s, p99", "≤", 12, " ms", middle("busy", "p99_ms")),
    Goal(WEBHOOK, "p50", "≤", 10, " ms", middle("webhooks", "p50_ms")),
    Goal(WEBHOOK, "rate", "≥", 3500, "/s", middle("webhooks", "per_second")),
    Goal(PASSTHROUGH, "added p50, 1 caller", "≤", 4, " ms", middle("passthrough", "added_ttft_p50_ms_1")),
    Goal(PASSTHROUGH, "added p50, 16 callers", "≤", 4, " ms", middle("passthrough", "added_ttft_p50_ms_16")),
    Goal(PASSTHROUGH, "server + PostgreSQL CPU a call", "≤", 6, " ms", middle("passthrough", "cpu_ms_16")),
    Goal(
        CROWD,
        "p99, 2,000 slow sockets",
        "≤",
        2,
        " ×",
        ratio("crowd", FOREMAN, system="beside 2,000 slow sockets", metric="p99_ms"),
    ),
    Goal(
        CROWD,
        "p99, another key at 10 times its limit",
        "≤",
        1.5,
        " ×",
        ratio("crowd", FOREMAN, system="beside a key at ten times its limit", metric="p99_ms"),
    ),
    *(goal for queue, row in GROWN_QUEUES.items() for goal in _growth_goals(queue, row)),
    Goal(MEMORY, "at rest", "≤", 150, " MB", middle("memory", "rest_mb")),
    Goal(MEMORY, "at most", "≤", 400, " MB", highest("peak_mb")),
)


# --- the table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rows(measured: Measured) -> list[tuple[str, str, str, str, str]]:
    """What, figure, measured, goal, verdict: as text."""
    found = []
    for goal in GOALS:
        value = goal.figure(measured)
        shown = "–" if value is None else f"{_number(value)}{goal.unit}"
        found.append((goal.row, goal.what, shown, goal.wanted(), goal.verdict(value)))
    return found


COLOURS = {"reached": "green", "not reached": "red", "not measured": "yellow"}


def print_goals(measured: Measured, console: Console, *, quick: bool) -> None:
    title = "goals" + (" (a quick run: these numbers mean nothing)" if quick else "")
    table = Table(title=title, title_justify="left")
    for column in ("what", "figure", "measured", "goal", ""):
        table.add_column(column, justify="right" if column in {"measured", "goal"} else "left")
    last = ""
    for row, what, shown, wanted, verdict in rows(measured):
        table.add_row(row if row != last else "", what, shown, wanted, f"[{COLOURS[verdict]}]{verdict}[/]")
        last = row
    console.print(table)
