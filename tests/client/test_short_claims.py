"""The worker asks for the short form of what it claims, and takes the long one from a server that knows no other."""

import json
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from foreman_client.wire import Reply, Request
from foreman_client.worker.claims import Claimer

APPLIED = {"preference-applied": "return=minimal"}
SHORT = '{"job_id":"a","kind":"k","lease_token":"t","payload":%s}'
LONG = '{"job_id":"a","kind":"k","lease_token":"t","payload":%s,"result":null,"progress":{"current":%s}}'


class Wire:
    def __init__(self, reply: Reply) -> None:
        self.asked: list[Request] = []
        self._reply = reply

    async def send(self, request: Request) -> Reply:
        self.asked.append(request)
        return self._reply


async def claimed(headers: dict[str, str], *jobs: str) -> list[dict[str, Any]]:
    wire = Wire(Reply(200, headers, f'{{"jobs":[{",".join(jobs)}]}}'.encode()))
    claimer = Claimer(
        SimpleNamespace(transport=wire),  # type: ignore[arg-type]  # all that it needs
        worker="w",
        queues=["default"],
        kinds=["k"],
        lease_seconds=30,
        wait_seconds=0,
        concurrency=1,
    )
    found = await claimer.claim(7)
    [request] = wire.asked
    assert request.headers["Prefer"] == "return=minimal"
    assert json.loads(request.content or b"")["limit"] == 7
    return found


@pytest.mark.parametrize(
    ("headers", "job"),
    [(APPLIED, SHORT % "[1e400]"), ({}, SHORT % "[1e400]"), ({}, LONG % ("[1e400]", "1e400"))],
)
async def test_numbers_beyond_a_float_are_exact_in_either_form(headers: dict[str, str], job: str) -> None:
    plain = SHORT % "[1.5]"
    [first, second] = await claimed(headers, plain, job)
    assert (first["payload"], second["payload"]) == ([1.5], [Decimal("1e400")])
    assert second.get("progress", {"current": Decimal("1e400")}) == {"current": Decimal("1e400")}


async def test_nothing_to_do_is_an_empty_list_in_either_form() -> None:
    assert await claimed({}) == await claimed(APPLIED) == []
