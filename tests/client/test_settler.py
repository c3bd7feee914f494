"""The sender of settlements, with a server that answers as each test likes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from foreman_client.errors import Unreachable
from foreman_client.wire import Reply, Request, encode
from foreman_client.worker.backoff import Backoff
from foreman_client.worker.settlements import LONGEST_PAUSE, Settlement, Settler
from tests.patience import turn_of_the_loop

Answer = Callable[[str, dict[str, Any]], Reply]


class LeasedJob:
    def __init__(self, job_id: str, lease_seconds: float = 60, token: str | None = None) -> None:
        self.job_id = job_id
        self.lease_token = token or f"token-{job_id}"
        self.head = encode({"job_id": job_id, "lease_token": self.lease_token})[:-1]
        self.lease_ends = time.monotonic() + lease_seconds
        self.lost: list[str] = []
        self.heard: list[Mapping[str, Any]] = []

    def lease_lost(self, code: str) -> None:
        self.lost.append(code)

    def answered(self, answer: Mapping[str, Any]) -> None:
        self.heard.append(answer)


class Wire:
    """Keeps what was sent; answers what `answer` says."""

    def __init__(self, answer: Answer) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer

    async def send(self, request: Request) -> Reply:
        # As on a real wire, others get their turn meanwhile.
        await turn_of_the_loop()
        body = json.loads(request.content or b"{}")
        self.sent.append((request.path, body))
        return self._answer(request.path, body)

    @property
    def verbs(self) -> list[list[tuple[str, str]]]:
        return [
            [(each["job_id"], each["verb"]) for each in body["settlements"]]
            if path == "/settlements"
            else [(path.split("/")[2], path.split("/")[3])]
            for path, body in self.sent
        ]


def reply(status: int, document: Any) -> Reply:
    return Reply(status, {}, json.dumps(document).encode())


def all_taken(path: str, body: dict[str, Any]) -> Reply:
    return reply(
        200, {"settlements": [{"job_id": each["job_id"], "ok": True} for each in body.get("settlements", [])]}
    )


@asynccontextmanager
async def settling(answer: Answer, patience: float = 60) -> AsyncIterator[tuple[Settler, Wire]]:
    wire = Wire(answer)
    settler = Settler(SimpleNamespace(transport=wire), patience_seconds=patience)  # type: ignore[arg-type]
    task = asyncio.create_task(settler.run())
    try:
        async with asyncio.timeout(20):
            yield settler, wire
            await settler.drained()
    finally:
        task.cancel()


def complete(job: LeasedJob, result: bytes = b"null") -> Settlement:
    return Settlement(job, "complete", result=result)


async def test_what_comes_together_goes_together() -> None:
    async with settling(all_taken) as (settler, wire):
        for n in range(5):
            settler.put(complete(LeasedJob(str(n)), b'{"n":1}'))
    assert wire.verbs == [[(str(n), "complete") for n in range(5)]]
    assert wire.sent[0][1]["settlements"][0] == {
        "job_id": "0",
        "lease_token": "token-0",
        "verb": "complete",
        "result": {"n": 1},
    }


async def test_one_job_says_one_thing_per_request_in_its_order() -> None:
    a, b = LeasedJob("a"), LeasedJob("b")
    async with settling(all_taken) as (settler, wire):
        settler.put(Settlement(a, "start"))
        settler.put(Settlement(a, "progress", {"current": 1}))
        settler.put(complete(a))
        settler.put(complete(b))
    assert wire.verbs == [[("a", "start"), ("b", "complete")], [("a", "progress")], [("a", "complete")]]


async def test_a_job_that_came_back_settles_though_its_former_run_lost_the_lease() -> None:
    def only_the_latter(path: str, body: dict[str, Any]) -> Reply:
        return reply(
            200,
            {
                "settlements": [
                    {"job_id": "a", "ok": True}
                    if each["lease_token"] == "latter"
                    else {"job_id": "a", "ok": False, "code": "lease_lost"}
                    for each in body["settlements"]
                ]
            },
        )

    former, latter = LeasedJob("a", token="former"), LeasedJob("a", token="latter")
    taken: list[bool] = []
    async with settling(only_the_latter) as (settler, wire):
        for settlement in (
            Settlement(former, "heartbeat"),
            Settlement(latter, "heartbeat"),
            complete(latter),
        ):
            settlement.done.append(taken.append)
            settler.put(settlement)
    assert (former.lost, latter.lost) == (["lease_lost"], [])
    assert wire.verbs == [[("a", "heartbeat"), ("a", "complete")]]
    assert sorted(taken) == [False, True, True]


async def test_a_start_that_has_not_left_is_spared_by_the_end() -> None:
    job = LeasedJob("a")
    async with settling(all_taken) as (settler, wire):
        settler.put(Settlement(job, "start"))
        settler.put(complete(job))
    assert wire.verbs == [[("a", "complete")]]


async def test_progress_that_has_not_left_gives_way_to_newer_progress_and_both_are_acknowledged() -> None:
    job = LeasedJob("a")
    taken: list[bool] = []
    async with settling(all_taken) as (settler, wire):
        for current in range(3):
            settlement = Settlement(job, "progress", {"current": current})
            settlement.done.append(taken.append)
            settler.put(settlement)
    assert [body["settlements"][0]["current"] for _, body in wire.sent] == [2]
    assert taken == [True] * 3


async def test_logs_go_by_their_own_route_before_what_was_said_after_them() -> None:
    job = LeasedJob("a")
    async with settling(all_taken) as (settler, wire):
        settler.put(Settlement(job, "logs", {"entries": [{"message": "1"}]}))
        settler.put(Settlement(job, "logs", {"entries": [{"message": "2"}]}))
        settler.put(complete(job))
    assert wire.sent[0] == (
        "/jobs/a/logs",
        {"lease_token": "token-a", "entries": [{"message": "1"}, {"message": "2"}]},
    )
    assert wire.verbs[1:] == [[("a", "complete")]]


async def test_a_lost_lease_silences_the_job_and_nobody_else() -> None:
    def answer(path: str, body: dict[str, Any]) -> Reply:
        return reply(
            200,
            {
                "settlements": [
                    {"job_id": "a", "ok": False, "code": "lease_lost"}
                    if each["job_id"] == "a"
                    else {**each, "ok": True}
                    for each in body["settlements"]
                ]
            },
        )

    a, b = LeasedJob("a"), LeasedJob("b")
    taken: list[bool] = []
    async with settling(answer) as (settler, wire):
        settlement = Settlement(a, "progress", {})
        settlement.done.append(taken.append)
        settler.put(settlement)
        settler.put(complete(a))
        settler.put(complete(b))
    assert a.lost == ["lease_lost"]
    assert taken == [False]
    assert (b.lost, len(b.heard)) == ([], 1)
    assert wire.verbs == [[("a", "progress"), ("b", "complete")]]


async def test_an_entry_that_the_server_names_as_wrong_is_the_only_one_to_suffer() -> None:
    def answer(path: str, body: dict[str, Any]) -> Reply:
        for index, each in enumerate(body["settlements"]):
            if each.get("result") == "bad":
                return reply(422, {"code": "invalid_request", "detail": "result: no", "index": index})
        return all_taken(path, body)

    jobs = [LeasedJob(str(n)) for n in range(10)]
    async with settling(answer) as (settler, wire):
        for job in jobs:
            settler.put(complete(job, b'"bad"' if job.job_id == "7" else b'"good"'))
    assert len(wire.sent) == 2
    failed = [each for each in wire.sent[-1][1]["settlements"] if each["verb"] == "fail"]
    assert [(each["job_id"], each["error"]["code"], each["retryable"]) for each in failed] == [
        ("7", "invalid_request", False)
    ]


async def test_a_result_that_is_too_large_is_found_by_halving() -> None:
    def answer(path: str, body: dict[str, Any]) -> Reply:
        if any(each.get("result") == "huge" for each in body["settlements"]):
            return Reply(413, {}, b'{"code": "payload_too_large"}')
        return all_taken(path, body)

    jobs = [LeasedJob(str(n)) for n in range(16)]
    async with settling(answer) as (settler, wire):
        for job in jobs:
            settler.put(complete(job, b'"huge"' if job.job_id == "11" else b"1"))
    taken = [each for _, body in wire.sent for each in body["settlements"] if each["verb"] == "fail"]
    assert [(each["job_id"], each["error"]["code"]) for each in taken] == [("11", "payload_too_large")]
    assert all(len(job.heard) == 1 for job in jobs)


async def test_a_server_that_is_away_gets_the_very_same_settlement_again() -> None:
    tries = 0

    def answer(path: str, body: dict[str, Any]) -> Reply:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Unreachable("cut off", maybe_received=True)
        if tries == 2:
            return Reply(503, {"retry-after": "0"}, b"")
        if tries == 3:
            return Reply(200, {}, b"<html>welcome</html>")
        return all_taken(path, body)

    job = LeasedJob("a")
    async with settling(answer) as (settler, wire):
        settler.put(complete(job, b'{"n": 1}'))
    assert len(wire.sent) == 4
    assert all(each == wire.sent[0] for each in wire.sent)
    assert len(job.heard) == 1


async def test_patience_ends_some_time_after_the_lease() -> None:
    def answer(path: str, body: dict[str, Any]) -> Reply:
        raise Unreachable("nobody there", maybe_received=False)

    job = LeasedJob("a", lease_seconds=0.1)
    async with settling(answer, patience=0.2) as (settler, wire):
        settler.put(complete(job))
    assert job.lost == ["lease_lost"]
    assert len(wire.sent) > 1


def test_a_server_that_is_back_hears_of_its_leases_soon() -> None:
    """It leaves them alone for a few seconds only, however long it was away."""
    backoff = Backoff(LONGEST_PAUSE)
    pauses = [backoff.next() for _ in range(50)]
    assert max(pauses) <= LONGEST_PAUSE <= 1
    # What it asks for is still respected.
    assert backoff.next(2.0) == 2.0
