"""The kinds of work that callers hand in: for the server's own executors, for workers over HTTP, and for nobody.

Each is a function of the dice, the address of the HTTP target and the length of a lease. What a worker over HTTP is to do
with a job stands in its payload.
"""

import random
from collections.abc import Callable
from typing import Any

Body = dict[str, Any]
Make = Callable[[random.Random, str, float], Body]
FLAVOURS: dict[str, Make] = {}
# How a worker over HTTP ends what it was given, and how often.
ENDINGS = {"complete": 80, "complete late": 3, "retry": 5, "fail": 4, "release": 4, "defer": 4}


def flavour(make: Make) -> Make:
    FLAVOURS[make.__name__.strip("_").replace("_", "-")] = make
    return make


def work(kind: str, queue: str, **payload: Any) -> Body:
    return {"kind": kind, "queue": queue, "payload": payload, "backoff_seconds": 0.2}


@flavour
def noop(*_: Any) -> Body:
    return {"kind": "noop"}


@flavour
def rare(dice: random.Random, *_: Any) -> Body:
    """Where nothing was before and nothing comes after: what is not told of it is found by looking."""
    return {"kind": "noop", "queue": f"rare-{dice.randrange(10**6)}"}


@flavour
def delayed(dice: random.Random, *_: Any) -> Body:
    return {"kind": "noop", "delay_seconds": dice.choice([0.5, 2, 5])}


@flavour
def expiring(dice: random.Random, *_: Any) -> Body:
    return {"kind": "chaos.nobody", "deadline_seconds": dice.choice([0.5, 2])}


@flavour
def http(dice: random.Random, target: str, lease: float) -> Body:
    """Longer than a lease now and then: it has to be renewed."""
    url = f"{target}/take/{dice.choice([0.05, 0.2, lease * 1.5])}"
    return {"kind": "http", "payload": {"url": url}, "backoff_seconds": 0.2}


@flavour
def chat(*_: Any) -> Body:
    return {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}


@flavour
def work_(dice: random.Random, _: str, lease: float) -> Body:
    return work("chaos.work", "work", do=_ending(dice), seconds=_duration(dice, lease))


@flavour
def any_kind(dice: random.Random, _: str, lease: float) -> Body:
    """For workers who take whatever there is."""
    return work("chaos.any-kind", "work", do=_ending(dice), seconds=_duration(dice, lease))


@flavour
def client(dice: random.Random, _: str, lease: float) -> Body:
    """For a worker that was made with the library."""
    return work("chaos.client", "work", do="complete", seconds=_duration(dice, lease))


@flavour
def keyed(dice: random.Random, *_: Any) -> Body:
    return work("chaos.work", "keyed", do="complete", seconds=0.02, customer=dice.randrange(12))


@flavour
def limited(*_: Any) -> Body:
    return work("chaos.work", "limited", do="complete", seconds=0.05)


@flavour
def rated(*_: Any) -> Body:
    return work("chaos.work", "rated", do="complete", seconds=0.05)


@flavour
def cancelled(_: random.Random, __: str, lease: float) -> Body:
    """Cancelled while it waits, while it runs, or when it is over."""
    return work("chaos.work", "work", do="complete", seconds=lease * 2)


def _ending(dice: random.Random) -> str:
    return dice.choices(list(ENDINGS), list(ENDINGS.values()))[0]


def _duration(dice: random.Random, lease: float) -> float:
    return dice.choice([0, 0, 0.02, 0.1, lease * 0.8])
