"""What came out: a table for people and a JSON file for machines."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Benchmark, Metric, Results


def print_table(results: Results, console: Console) -> None:
    benchmark = results.benchmark
    metrics = [metric for metric in benchmark.told if _was_measured(results, metric)]
    table = Table(title=f"{benchmark.name}: {benchmark.question}", title_justify="left")
    table.add_column("system")
    for metric in metrics:
        table.add_column(metric.title, justify="right")
    others = len(benchmark.systems) > 1
    compared = [metric for metric in metrics if metric.compared and others]
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
    return short(results.median(system, metric.name))


def _ratio(results: Results, system: str, metric: Metric) -> str:
    """The median ratio, and how far the rounds lie apart."""
    ratios = results.ratios(system, metric.name)
    if system == results.benchmark.subject or not ratios:
        return "–"
    spread = f" [dim]({min(ratios):.2f}–{max(ratios):.2f})[/]" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}{spread}"


def short(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_document(
    all_results: list[Results], rounds: int, quick: bool, about: dict[str, Any]
) -> dict[str, Any]:
    """Everything that the tables and plots are made of; `about` tells machine and versions."""
    return {
        **about,
        "rounds": rounds,
        "quick": quick,
        "benchmarks": {results.benchmark.name: _benchmark_document(results) for results in all_results},
    }


def _benchmark_document(results: Results) -> dict[str, Any]:
    benchmark = results.benchmark
    return {
        "question": benchmark.question,
        "metrics": [asdict(metric) for metric in benchmark.told],
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
