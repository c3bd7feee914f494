"""Each outcome of a run is exactly one verb of the store."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from app.engine import settler as settler_module
from app.engine.settler import Settler, as_settlement
from app.errors import DatabaseUnavailable
from app.events.hub import Hub
from app.jobs.outcomes import Cancelled, Deferred, Failed, JobError, Outcome, Released, Retry, Succeeded
from app.jobs.states import Verb
from app.store.changes import Changes
from app.store.database import Database
from app.store.settle import Settled, Settlement, settle
from tests.patience import turn_of_the_loop, until
from tests.store.making import log_of, running

ERROR = JobError("broken", "It broke.", retryable=True)


@pytest.mark.parametrize(
    ("outcome", "verb", "fields"),
    [
        (Succeeded('{"a":1.0}'), Verb.COMPLETE, {"result": '{"a":1.0}'}),
        (Succeeded("1", '{"t":2}'), Verb.COMPLETE, {"result": "1", "usage": '{"t":2}'}),
        (Failed(ERROR), Verb.FAIL, {}),
        (Retry(ERROR), Verb.RETRY, {"delay_seconds": None}),
        (Retry(ERROR, 3.5), Verb.RETRY, {"delay_seconds": 3.5}),
        (
            Deferred(7, "target_asleep"),
            Verb.DEFER,
            {"delay_seconds": 7, "reason": "target_asleep", "error": None},
        ),
        (Deferred(7, "busy", ERROR), Verb.DEFER, {"delay_seconds": 7, "reason": "busy"}),
        (Released(), Verb.RELEASE, {"reason": "worker_shutdown"}),
        (Cancelled(), Verb.CANCEL, {"reason": "cancel"}),
    ],
)
def test_each_outcome_is_exactly_one_verb(outcome: Outcome, verb: Verb, fields: dict[str, Any]) -> None:
    settlement = as_settlement("id", "token", outcome)
    assert (settlement.job_id, settlement.lease_token, settlement.verb) == ("id", "token", verb)
    for name, value in fields.items():
        assert getattr(settlement, name) == value
    if isinstance(outcome, Failed | Retry) or (isinstance(outcome, Deferred) and outcome.error):
        assert json.loads(settlement.error or "") == {
            "code": "broken",
            "message": "It broke.",
            "retryable": True,
        }


def test_the_backoff_of_a_retry_is_spread() -> None:
    factors = {as_settlement("id", "token", Retry(ERROR)).jitter for _ in range(50)}
    assert len(factors) > 10
    assert all(0.8 <= factor <= 1.2 for factor in factors)


def test_an_error_with_a_nul_in_it_can_be_written() -> None:
    settlement = as_settlement("id", "token", Failed(JobError("broken", "a\0b")))
    assert json.loads(settlement.error or "")["message"] == "a\ufffdb"


class CutAfterCommit(Database):
    """Does what it is told, and the connection is gone before it could say so; the first time."""

    cut = False

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        answer = await super().fetch(statement, *arguments)
        if not self.cut:
            self.cut = True
            raise DatabaseUnavailable("The connection was cut.", retry_after=1)
        return answer


@pytest.mark.parametrize(
    "outcome", [Succeeded("1"), Failed(ERROR), Retry(ERROR), Deferred(7, "busy"), Released()]
)
async def test_a_settlement_whose_answer_was_lost_is_sent_again_and_is_not_late(
    database: Database, database_url: str, outcome: Outcome
) -> None:
    job_id, token = await running(database)
    cut = CutAfterCommit(database_url)
    await cut.open()
    try:
        settled = await Settler(cut, Hub(cut, None, 60)).settle_surely(as_settlement(job_id, token, outcome))
    finally:
        await cut.close()
    assert cut.cut
    assert settled.ok
    assert "late_settlement" not in [type_ for _, type_, _ in await log_of(database, job_id)]


async def test_what_is_sent_twice_waits_for_itself_and_keeps_nobody_else_waiting(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stall workers send again what was not answered: then most of a flush is there twice."""
    held = [await running(database) for _ in range(2 + 20)]
    settlements = [as_settlement(job_id, token, Succeeded("1")) for job_id, token in held]
    gate, sizes = asyncio.Event(), []

    async def counted(target: Database, batch: Sequence[Settlement]) -> Changes[Settled]:
        sizes.append(len(batch))
        await gate.wait()
        return await settle(target, batch)

    monkeypatch.setattr(settler_module, "settle", counted)
    settler = Settler(database, Hub(database, None, 60))
    # Until both flushes that there may be are on their way.
    first = [asyncio.create_task(settler.settle(settlements[0]))]
    await until(lambda: len(sizes) == 1)
    first.append(asyncio.create_task(settler.settle(settlements[1])))
    await until(lambda: len(sizes) == 2)
    late = as_settlement(settlements[2].job_id, "0" * 36, Succeeded("2"))
    waiting = [*settlements[2:], *settlements[2:], late]
    others = [asyncio.create_task(settler.settle(each)) for each in waiting]
    await turn_of_the_loop()
    gate.set()
    answers = await asyncio.gather(*first, *others)
    assert [each.ok for each in answers] == [True] * 42 + [False]
    assert sorted(sizes, reverse=True) == [20, 20, 1, 1, 1]
