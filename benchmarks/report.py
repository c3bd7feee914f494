"""What came out: a table for people and a JSON file for machines."""

import json
import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Benchmark, Metric, Results


def print_table(results: Results, console: Console, *, quick: bool) -> None:
    """Aims are for real runs: over a second or two everything is still warming up."""
    benchmark = replace(results.benchmark, aims=()) if quick else results.benchmark
    results = replace(results, benchmark=benchmark)
    metrics = [metric for metric in benchmark.metrics if _was_measured(results, metric)]
    table = Table(title=f"{benchmark.name}: {benchmark.question}", title_justify="left")
    table.add_column("system")
    for metric in metrics:
        table.add_column(metric.title, justify="right")
    compared = [metric for metric in metrics if metric.compared]
    for metric in compared:
        table.add_column(f"{benchmark.subject} ÷ it, {metric.title}", justify="right")
    for system in benchmark.systems:
        middles = [_middle(results, system.name, metric) for metric in metrics]
        ratios = [_ratio(results, system.name, metric) for metric in compared]
        table.add_row(system.name, *middles, *ratios)
    console.print(table)
    for name, why in results.skipped.items():
        console.print(f"{name} was not measured: {why}", style="yellow", markup=False)
    for name, why in results.failures.items():
        console.print(f"{name} failed: {why}", style="red", markup=False)


def _was_measured(results: Results, metric: Metric) -> bool:
    return any(results.values(system.name, metric.name) for system in results.benchmark.systems)


def _middle(results: Results, system: str, metric: Metric) -> str:
    middle = results.median(system, metric.name)
    return "–" if middle is None else _short(middle)


def _ratio(results: Results, system: str, metric: Metric) -> str:
    """The median ratio, how far the rounds lie apart, and the aim if there is one."""
    ratios = results.ratios(system, metric.name)
    if system == results.benchmark.subject or not ratios:
        return "–"
    middle = median(ratios)
    spread = f" [dim]({min(ratios):.2f}–{max(ratios):.2f})[/]" if len(ratios) > 1 else ""
    aim = results.benchmark.aim_for(system, metric.name)
    if aim is None:
        return f"{middle:.2f}{spread}"
    sign = "≥" if metric.better == "higher" else "≤"
    colour = "green" if results.benchmark.reached(aim, middle) else "red"
    return f"[{colour}]{middle:.2f}[/]{spread} aim {sign} {aim.ratio:g}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_document(all_results: list[Results], rounds: int, quick: bool, postgres: str) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "postgres": postgres,
            # What else went on: over the last 15 minutes there is more in it than our own run.
            "load_average": os.getloadavg(),
        },
        "rounds": rounds,
        "quick": quick,
        "benchmarks": {results.benchmark.name: _benchmark_document(results) for results in all_results},
    }


def _benchmark_document(results: Results) -> dict[str, Any]:
    benchmark = results.benchmark
    return {
        "subject": benchmark.subject,
        "medians": {system.name: _medians(results, system.name) for system in benchmark.systems},
        "ratios": {system.name: _ratios(results, benchmark, system.name) for system in benchmark.systems[1:]},
        "rounds": results.rounds,
        "skipped": results.skipped,
        "failures": results.failures,
    }


def _medians(results: Results, system: str) -> dict[str, float]:
    names = sorted({name for numbers in results.rounds for name in numbers.get(system, {})})
    found = {name: results.median(system, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _ratios(results: Results, benchmark: Benchmark, system: str) -> dict[str, float]:
    compared = [metric.name for metric in benchmark.metrics if metric.compared]
    return {name: median(ratios) for name in compared if (ratios := results.ratios(system, name))}


def write_json(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
