"""Writes the last full run into docs/benchmarks.md: tables, plots, versions, machine, commands.

    make bench && make bench-growth && make bench-report

Only what stands between the two marks is written; the rest of the page is for people to write.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import goals, growth, plots, report
from benchmarks.goals import Measured
from benchmarks.peering import EVERYONE

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
RESULTS = Path(__file__).resolve().parent / "results"
BEGIN = "<!-- results: written by `make bench-report` -->"
END = "<!-- end of results -->"
ALT = {
    "enqueue": "jobs taken in one by one",
    "bulk": "jobs taken in a thousand at a time",
    "drain": "no-ops done by one worker process",
    "latency": "from enqueue to start at 50 jobs a second",
    "busy": "from enqueue to start at 800 jobs a second",
    "passthrough": "what is added to the first word",
    "growth-rate": "jobs finished a second while a transaction is open",
    "growth-wait": "from enqueue to start while a transaction is open",
}


def written(measured: Measured, drawn: Sequence[str]) -> str:
    parts = [_goals(measured), *_plots(drawn)]
    if measured.bench:
        parts.append(_losses(measured.bench))
        parts += [_benchmark(name, found) for name, found in measured.bench["benchmarks"].items()]
    if measured.growth:
        parts.append(_growth(measured.growth))
    parts.append(_about(measured))
    return "\n\n".join([BEGIN, *parts, END])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def _goals(measured: Measured) -> str:
    columns = ("what", "figure", "measured", "goal", "")
    shown = [
        (row, what, value, wanted, verdict if verdict == "reached" else f"**{verdict}**")
        for row, what, value, wanted, verdict in goals.rows(measured)
    ]
    return "### The goals\n\n" + _table(columns, shown)


def _plots(drawn: Sequence[str]) -> list[str]:
    return ["### Plots", *(f"![{ALT[name]}](benchmarks/{name}.svg)" for name in drawn)]


def _benchmark(name: str, found: Mapping[str, Any]) -> str:
    rounds: list[Mapping[str, Mapping[str, float]]] = found["rounds"]
    systems = list(dict.fromkeys(system for each in rounds for system in each))
    metrics = [
        metric
        for metric in found["metrics"]
        if any(metric["name"] in numbers for each in rounds for numbers in each.values())
    ]
    compared = [metric for metric in metrics if metric["compared"]] if len(systems) > 1 else []
    columns = ["system", *(metric["title"] for metric in metrics)]
    columns += [f"{found['subject']} ÷ it, {metric['title']}" for metric in compared]
    rows = [
        [
            system,
            *(report.short(found["medians"][system].get(metric["name"])) for metric in metrics),
            *(_ratio(rounds, found["subject"], system, metric["name"]) for metric in compared),
        ]
        for system in systems
    ]
    words = (
        f"### `{name}`: {found['question']}\n\n{len(rounds)} round{'s' if len(rounds) > 1 else ''}; medians."
    )
    left_out = {**found["skipped"], **found["failures"]}
    missing = [
        f"- {system} was not measured: {' '.join(why.split())[:200]}" for system, why in left_out.items()
    ]
    return "\n\n".join(filter(None, [words, _table(columns, rows), "\n".join(missing)]))


def _losses(bench: Mapping[str, Any]) -> str:
    """Every figure in which another queue, or LiteLLM, is ahead of us."""
    others = {peer.name for peer in EVERYONE}
    lost = []
    for name, found in bench["benchmarks"].items():
        for metric in found["metrics"]:
            for system in others & found["ratios"].keys():
                ratio = found["ratios"][system].get(metric["name"])
                if ratio is not None and (ratio < 1 if metric["better"] == "higher" else ratio > 1):
                    lost.append(f"- `{name}`, {metric['title']}: {ratio:.2f} × {system}'s")
    return "### Where we lose\n\n" + ("\n".join(sorted(lost)) or "Nowhere, in this run.")


def _ratio(
    rounds: Sequence[Mapping[str, Mapping[str, float]]], subject: str, system: str, metric: str
) -> str:
    """The median of the ratios within rounds, and how far they lie apart."""
    ratios = [
        each[subject][metric] / each[system][metric]
        for each in rounds
        if metric in each.get(subject, {}) and each.get(system, {}).get(metric)
    ]
    if system == subject or not ratios:
        return ""
    spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}{spread}"


def _growth(document: Mapping[str, Any]) -> str:
    sizes = document["sizes"]
    words = (
        f"### `bench-growth`: an empty and a grown database\n\n"
        f"{sizes['finished']:,} finished and {sizes['scheduled']:,} scheduled jobs in"
        f" {sizes['queues']:,} queues;"
        f" {sizes['rate']:g} jobs/s for {sizes['seconds']:g} s with a transaction held open"
        f" (empty: {sizes['empty_seconds']:g} s, none). Rates are of the last fifth of that."
    )
    rows = [
        [f"{queue}, {side}", *(report.short(numbers.get(name)) for name in growth.COLUMNS)]
        for queue, sides in document["queues"].items()
        for side, numbers in sides.items()
    ]
    return words + "\n\n" + _table(["queue", *growth.COLUMNS.values()], rows)


def _about(measured: Measured) -> str:
    rows: list[Sequence[str]] = []
    for command, document in (("make bench", measured.bench), ("make bench-growth", measured.growth)):
        if document:
            machine = document["machine"]
            quick = " (a quick run: its numbers mean nothing)" if document["quick"] else ""
            rows += [
                (f"`{command}`", f"{document['at']}, commit `{document['commit']}`{quick}"),
                (
                    "machine",
                    f"{machine['cpus']} × {machine['processor']}, {machine['memory_gb']} GB,"
                    f" {machine['system']}",
                ),
                ("Python, PostgreSQL", f"{machine['python']}, {machine['postgres']}"),
                ("load average at its end", ", ".join(str(each) for each in machine["load_average"])),
            ]
    about = next((each for each in (measured.bench, measured.growth) if each), None)
    if about:
        rows += [(peer, version) for peer, version in about["peers"].items()]
    commands = "```\nmake bench\nmake bench-growth\nmake bench-report\n```"
    return f"### Measured with\n\n{commands}\n\n" + _table(("", ""), rows)


def newest(pattern: str) -> Path | None:
    """Of the full runs: a quick one says nothing that belongs on a page."""
    found = sorted(RESULTS.glob(pattern), reverse=True)
    return next((path for path in found if '"quick": false' in path.read_text(encoding="utf-8")), None)


def put_into(page: str, generated: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} has lost its marks: {BEGIN} and {END}")
    return before + generated + after


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.document", description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="by default the newest full run of each kind")
    parser.add_argument("--page", type=Path, default=PAGE)
    chosen = parser.parse_args()
    paths = chosen.results or [path for path in map(newest, ("bench-*.json", "growth-*.json")) if path]
    if not paths:
        sys.exit("There are no results of a full run: make bench, make bench-growth")
    measured = plots.read(paths)
    drawn = plots.write(measured, chosen.page.parent / "benchmarks")
    page = put_into(chosen.page.read_text(encoding="utf-8"), written(measured, drawn))
    chosen.page.write_text(page, encoding="utf-8")
    print(f"{chosen.page} has the results of {', '.join(path.name for path in paths)}")


if __name__ == "__main__":
    main()
