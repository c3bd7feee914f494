"""The shape every benchmark has, and the loop that runs it.

A benchmark is a name, metrics and systems; a system answers numbers each time it is run. Rounds are
interleaved (A, B, C, A, B, C …), so that a noisy neighbour hurts everyone alike, and a ratio is taken inside
a round before the median is taken over the rounds. Rates of different runs are never compared. A turn during
which the host took the processor away is measured again, whoever's turn it was (see steal.py).
"""

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from benchmarks.lab import Lab
from benchmarks.measuring import Numbers
from benchmarks.peering import Peer
from benchmarks.steal import Meter

__all__ = ["Announce", "Benchmark", "Metric", "Results", "System", "run_rounds"]

Announce = Callable[[str], None]

MAX_STOLEN_PERCENT = 1.5


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    better: Literal["higher", "lower"]
    compared: bool = True  # False: systems are asked in different ways, and a ratio would say nothing


PEAK_MEMORY = Metric("peak_mb", "server MB", "lower", compared=False)


@dataclass(frozen=True)
class System:
    """`peer` is what has to be installed first, for systems that are not ours."""

    name: str
    run_once: Callable[[Lab], Awaitable[Numbers]]
    peer: Peer | None = None
    is_slow_to_start: bool = False  # a quick run leaves it out, unless it is asked for


@dataclass(frozen=True)
class Benchmark:
    """The first system is the subject: ratios are its numbers divided by each other's."""

    name: str
    question: str
    metrics: tuple[Metric, ...]
    systems: tuple[System, ...]
    # Nobody else is in it, so that further rounds would only take time; and no goal depends on it, so that a
    # quick run leaves it out, unless it is asked for.
    is_aside: bool = False

    @property
    def subject(self) -> str:
        return self.systems[0].name

    @property
    def told(self) -> tuple[Metric, ...]:
        """Its own metrics, and what all have."""
        return (*self.metrics, PEAK_MEMORY)


@dataclass
class Results:
    """Per round, what each system answered; and for those that could not, why."""

    benchmark: Benchmark
    rounds: list[dict[str, Numbers]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def values(self, system: str, metric: str) -> list[float]:
        return [
            numbers[system][metric]
            for numbers in self.rounds
            if system in numbers and metric in numbers[system]
        ]

    def median(self, system: str, metric: str) -> float | None:
        values = self.values(system, metric)
        return median(values) if values else None

    def ratios(self, system: str, metric: str) -> list[float]:
        """Subject ÷ system, one for each round in which both were measured."""
        subject = self.benchmark.subject
        pairs = [
            (numbers[subject].get(metric), numbers[system].get(metric))
            for numbers in self.rounds
            if subject in numbers and system in numbers
        ]
        return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]


async def take_turn(system: System, lab: Lab, announce: Announce) -> Numbers:
    """The numbers of the least disturbed of as many turns as it takes to have one that was left alone."""
    turns: list[Numbers] = []
    while True:
        meter, began = Meter(), time.monotonic()
        numbers = await system.run_once(lab)
        peak = lab.memory.take()
        turns.append({**numbers, "stolen_percent": meter.percent()})
        if peak is not None:
            turns[-1]["peak_mb"] = peak
        if len(turns) > 1:
            lab.retakes.spend(time.monotonic() - began)
        best = min(turns, key=lambda turn: turn["stolen_percent"])
        is_last = len(turns) == lab.scale.turns or lab.retakes.is_spent
        if best["stolen_percent"] <= MAX_STOLEN_PERCENT or is_last:
            return {**best, "turns": float(len(turns))}
        announce(f"{turns[-1]['stolen_percent']:.1f} % of the machine was stolen; {system.name} again")


async def run_round(results: Results, lab: Lab, announce: Announce, title: str) -> None:
    """Each system takes its turn. One that fails is told of at the end and leaves others their numbers."""
    measured: dict[str, Numbers] = {}
    for system in results.benchmark.systems:
        if system.name in results.skipped or system.name in results.failures:
            continue
        announce(f"{results.benchmark.name}, {title}: {system.name}")
        try:
            measured[system.name] = await take_turn(system, lab, announce)
        except Exception as error:
            results.failures[system.name] = f"{type(error).__name__}: {error}"
    results.rounds.append(measured)


async def run_rounds(
    all_results: Sequence[Results], lab: Lab, rounds: int, announce: Announce, seconds: float = math.inf
) -> int:
    """All benchmarks once, then all of them once more: how often, at most, and within what time.

    So what goes on beside us falls on all of them alike. Returns how many rounds there was time for.
    """
    began = time.monotonic()
    for number in range(1, rounds + 1):
        round_seconds = 0.0
        for results in all_results:
            if results.benchmark.is_aside and number > 1:
                continue
            turned = time.monotonic()
            await run_round(results, lab, announce, f"round {number} of {rounds}")
            round_seconds += 0 if results.benchmark.is_aside else time.monotonic() - turned
        if number < rounds and time.monotonic() - began + round_seconds > seconds:
            announce(f"there is no time for more than {number} of {rounds} rounds: see --minutes")
            return number
    return rounds
