"""How a measuring process is talked to: `python -m <module> <verb> '<json arguments>'`, JSON lines on stdout.

Used by the peers' scripts in their own venvs and by our own: standard library and uvloop only.
"""

import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

Verb = Callable[..., Awaitable[object]]


def say(value: object) -> None:
    """One JSON line for the harness, at once."""
    print(json.dumps(value), flush=True)


class Arrivals:
    """How long each job took to start: says that the worker is there at the first, and all once they came.

    The first one is sent ahead of the others and does not count.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._latencies: list[float] = []

    def note(self, sent_at: float) -> None:
        self._latencies.append(time.time() - sent_at)
        if len(self._latencies) == 1:
            say("ready")
        if len(self._latencies) == 1 + self._expected:
            say(self._latencies[1:])


def main(*verbs: Verb) -> None:
    """Run the verb that the command line names, on uvloop, and print what it answers."""
    import uvloop

    known = {verb.__name__: verb for verb in verbs}
    if len(sys.argv) != 3 or sys.argv[1] not in known:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(known)} '<json arguments>'")
    verb, arguments = known[sys.argv[1]], json.loads(sys.argv[2])
    uvloop.run(_answer(verb, arguments))


async def _answer(verb: Verb, arguments: dict[str, Any]) -> None:
    # The harness hands every script the same arguments; each verb takes those it has a use for.
    wanted = inspect.signature(verb).parameters
    say(await verb(**{name: value for name, value in arguments.items() if name in wanted}))
