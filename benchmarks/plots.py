"""The plots of docs/benchmarks.md, drawn from the files that the benchmarks leave behind.

python -m benchmarks.plots results.json [growth.json] [--to docs/benchmarks]
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.goals import Measured
from benchmarks.svg import Bar, Line, bar_chart, line_chart

DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
OURS = ("foreman", "foreman, API key", "foreman, keyed")
BOUNDS = ("bare route", "raw inserts", "client alone")
LINE_TITLES = {"plain": "plain queue", "fair": "with fair_by", "limited": "with max_running 64"}
LINE_COLOURS = {"plain": "ours", "fair": "bound", "limited": "third"}


def read(paths: Sequence[Path]) -> Measured:
    """Which command wrote which file is seen by what is in it."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    bench = next((each for each in documents if "benchmarks" in each), None)
    growth = next((each for each in documents if "queues" in each), None)
    return Measured(bench, growth)


def charts(measured: Measured) -> dict[str, str]:
    """By file name, without those for which nothing was measured."""
    drawn: dict[str, str] = {}
    for name, title, axis in (
        ("enqueue", "Jobs taken in one by one, each on disk before its answer", "jobs a second"),
        ("bulk", "Jobs taken in a thousand at a time", "jobs a second"),
        ("drain", "No-ops done by one worker process", "jobs a second"),
    ):
        if bars := _bars(measured, name, "per_second"):
            # The slowest and the fastest lie two powers of ten apart.
            drawn[name] = bar_chart(title, axis, bars, logarithmic=name == "drain")
    drawn |= _latency(measured)
    drawn |= _passthrough(measured)
    drawn |= _growth(measured)
    return drawn


def _middles(measured: Measured, benchmark: str, metric: str) -> dict[str, float]:
    """By system, in the order in which they were measured."""
    found: dict[str, list[float]] = {}
    for numbers in measured.rounds(benchmark):
        for system, each in numbers.items():
            if metric in each:
                found.setdefault(system, []).append(each[metric])
    return {system: median(values) for system, values in found.items()}


def _bars(measured: Measured, benchmark: str, metric: str, suffix: str = "") -> list[Bar]:
    return [
        Bar(system + suffix, value, _colour(system))
        for system, value in _middles(measured, benchmark, metric).items()
    ]


def _colour(system: str) -> str:
    if system in OURS:
        return "ours"
    return "bound" if system in BOUNDS else "theirs"


def _latency(measured: Measured) -> dict[str, str]:
    drawn = {}
    for name, rate in (("latency", 50), ("busy", 800)):
        bars = [
            *_bars(measured, name, "p50_ms", ", p50"),
            *_bars(measured, name, "p99_ms", ", p99"),
        ]
        if bars:
            title = f"From enqueue to start at {rate} jobs a second"
            drawn[name] = bar_chart(title, "milliseconds", bars, logarithmic=True)
    return drawn


def _passthrough(measured: Measured) -> dict[str, str]:
    bars = [
        bar
        for callers in (1, 16, 64)
        for bar in _bars(measured, "passthrough", f"added_ttft_p50_ms_{callers}", f", {callers} at once")
        if bar.value > 0
    ]
    title = "Added to the first word of a stream, p50"
    return {"passthrough": bar_chart(title, "milliseconds", bars, logarithmic=True)} if bars else {}


def _growth(measured: Measured) -> dict[str, str]:
    drawn = {}
    for name, metric, title, upward in (
        ("growth-rate", "per_second", "Jobs finished while an old transaction is open", "jobs a second"),
        (
            "growth-wait",
            "p99_ms",
            "From enqueue to start while an old transaction is open",
            "p99, milliseconds",
        ),
    ):
        lines = [
            Line(
                f"{LINE_TITLES[queue]}{'' if side == 'grown' else ', empty database'}",
                points,
                colour,
                side == "empty",
            )
            for queue, colour in LINE_COLOURS.items()
            if (sides := measured.grown(queue)) is not None
            for side in ("grown", "empty")
            if (points := _points(sides[side], metric))
        ]
        if lines:
            drawn[name] = line_chart(title, "seconds", upward, lines, logarithmic=metric == "p99_ms")
    return drawn


def _points(side: Mapping[str, Any], metric: str) -> list[tuple[float, float]]:
    return [(each["second"], each[metric]) for each in side.get("timeline", ())]


def write(measured: Measured, folder: Path) -> list[str]:
    """The names of the plots that were drawn; those of earlier runs that were not are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = charts(measured)
    for old in folder.glob("*.svg"):
        if old.stem not in drawn:
            old.unlink()
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    return list(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    chosen = parser.parse_args()
    for name in write(read(chosen.results), chosen.to):
        print(chosen.to / f"{name}.svg")


if __name__ == "__main__":
    main()
