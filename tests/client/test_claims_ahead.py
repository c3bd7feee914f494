"""The next claim is under way while the jobs of the last one begin, where handlers end at once, and only there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from foreman_client.worker.reach import ROUNDS_TO_TRUST
from foreman_client.worker.shift import Shift, Terms
from foreman_client.worker.tasks import make_task
from tests.patience import for_ever, turn_of_the_loop, until

CONCURRENCY = 4


class Backlog:
    """In the place of the claimer: as many jobs as are asked for, for so many rounds, and then nobody is answered."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.in_flight = 0
        self.given: list[str] = []
        # What the last claim waits for before it is answered.
        self.held_back: Callable[[], Awaitable[object]] = for_ever

    async def claim(self, limit: int) -> list[dict[str, Any]]:
        self.in_flight += 1
        try:
            self.rounds -= 1
            if self.rounds < 0:
                await self.held_back()
            else:
                await turn_of_the_loop()
            return [self._job() for _ in range(limit)]
        finally:
            self.in_flight -= 1

    def _job(self) -> dict[str, Any]:
        self.given.append(f"job-{len(self.given)}")
        return {"job_id": self.given[-1], "kind": "k", "lease_token": f"token-{len(self.given)}"}


def shift_of(handler: Callable[..., Awaitable[None]], backlog: Backlog) -> Shift:
    terms = Terms("http://localhost:1", None, "w", ("default",), CONCURRENCY, 30.0, 0.5)
    shift = Shift(terms, {"k": make_task("k", handler)})
    shift._claimer = backlog  # type: ignore[assignment]  # speaks to nobody
    return shift


def verbs(shift: Shift) -> list[str]:
    return [line[-1].verb for line in shift._settler._waiting.values()]


async def test_a_claim_is_under_way_while_handlers_run_once_they_have_proved_quick() -> None:
    backlog = Backlog(rounds=ROUNDS_TO_TRUST + 3)
    in_flight: list[int] = []

    async def quick(_payload: Any) -> None:
        in_flight.append(backlog.in_flight)

    shift = shift_of(quick, backlog)
    claiming = asyncio.create_task(shift._claim())
    await until(lambda: backlog.rounds < 0 and len(in_flight) == len(backlog.given))
    claiming.cancel()
    await asyncio.wait({claiming})
    at_first = ROUNDS_TO_TRUST * CONCURRENCY
    assert set(in_flight[:at_first]) == {0}
    assert in_flight[-1] == 1
    assert backlog.in_flight == 0  # the claim under way is cut off with the rest
    assert verbs(shift) == ["complete"] * len(backlog.given)


async def test_no_claim_is_made_ahead_of_handlers_that_wait() -> None:
    backlog = Backlog(rounds=100)
    began = 0

    async def slow(_payload: Any) -> None:
        nonlocal began
        began += 1
        assert backlog.in_flight == 0
        await turn_of_the_loop()
        await turn_of_the_loop()
        await turn_of_the_loop()

    shift = shift_of(slow, backlog)
    claiming = asyncio.create_task(shift._claim())
    await until(lambda: backlog.rounds < 0)
    claiming.cancel()
    await asyncio.wait({claiming, *shift._slots})
    assert began == len(backlog.given)
    assert set(verbs(shift)) == {"complete"}


async def test_what_a_claim_ahead_brings_after_the_stop_goes_back_without_having_begun() -> None:
    backlog = Backlog(rounds=ROUNDS_TO_TRUST + 2)
    ran: list[str] = []

    async def quick(_payload: Any, job: Any) -> None:
        ran.append(job.job_id)

    shift = shift_of(quick, backlog)
    backlog.held_back = shift._stopping.wait
    claiming = asyncio.create_task(shift._claim())
    await until(lambda: backlog.rounds < 0 and len(ran) == len(backlog.given))
    done = len(ran)
    shift._stop()
    async with asyncio.timeout(100):
        await claiming
    assert len(ran) == done
    assert len(backlog.given) > done
    assert verbs(shift) == ["complete"] * done + ["release"] * (len(backlog.given) - done)
