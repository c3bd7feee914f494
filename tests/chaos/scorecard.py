"""A report as people read it: on the terminal, and in docs/reliability.md between its two marks."""

import platform
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.run import Report, Struck

BEGIN, END = "<!-- scorecard: written by `make chaos ARGS=--publish` -->", "<!-- end of scorecard -->"
RECOVERY_SECONDS = 5.0


def goals(report: Report) -> dict[str, bool]:
    """What was promised of a whole run, and whether it was kept."""
    slowest = report.slowest
    kept = {
        f"at least {report.plan.jobs:,} jobs acknowledged": report.score.counts["jobs acknowledged"]
        >= report.plan.jobs,
        "nothing in any column": report.score.is_clean,
        f"recovered within {RECOVERY_SECONDS:.0f} s after each fault": slowest is None
        or slowest.recovery <= RECOVERY_SECONDS,
    }
    lease = report.plan.shape.lease_seconds
    for rolled in report.rolled:
        kept["no request failed in a rolling restart"] = rolled.failed == 0
        kept["no job waited longer than a lease in a rolling restart"] = rolled.longest_wait <= lease
    return kept


def lines(report: Report) -> Iterator[str]:
    plan = report.plan
    yield (
        f"Seed {plan.seed}, {report.seconds / 60:.1f} minutes, {len(plan.shape.replicas)} replicas, "
        f"{len(report.struck)} faults of {len({each.name for each in report.struck})} kinds; "
        f"{_machine()}."
    )
    yield ""
    yield from _table(
        ("promise", "broken"), [(title, f"{len(found)}") for title, found in report.score.columns.items()]
    )
    yield ""
    yield from _table(
        ("seen", "count"), [(what, f"{count:,}") for what, count in report.score.counts.items()]
    )
    yield ""
    yield from _table(("fault", "times", "lasted", "recovered after: median", "slowest"), _faults(report))
    for name, why in report.not_here.items():
        yield f"\nNot run: {name} ({why})."
    for rolled in report.rolled:
        yield (
            f"\nRolling restart of all replicas in {rolled.seconds:.0f} s: {rolled.requests:,} plain jobs came in meanwhile, "
            f"{rolled.failed} requests failed after one repetition, the longest wait for a worker was "
            f"{rolled.longest_wait:.2f} s (lease: {plan.shape.lease_seconds:.0f} s)."
        )
    if report.named_full:
        yield f"\nFull disk: {report.named_full} refusals said so."
    yield ""
    for goal, kept in goals(report).items():
        yield f"- {'kept' if kept else '**not kept**'}: {goal}"


def _machine() -> str:
    cores = len(
        [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")]
    )
    return f"{cores} cores, Python {platform.python_version()}"


def _faults(report: Report) -> list[tuple[str, ...]]:
    by_name: dict[str, list[Struck]] = defaultdict(list)
    for each in report.struck:
        by_name[each.name].append(each)
    return [
        (
            name,
            f"{len(found)}",
            f"{statistics.median(each.ended - each.began for each in found):.1f} s",
            f"{statistics.median(each.recovery for each in found):.2f} s",
            f"{max(each.recovery for each in found):.2f} s",
        )
        for name, found in sorted(by_name.items())
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def publish(report: Report, page: Path) -> None:
    text = page.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines(report)) + f"\n\n{END}{after}")
