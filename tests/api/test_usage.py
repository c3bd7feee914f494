"""What workers say a job used: checked where it comes in, summed whatever stands in the database already."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import pytest

from tests.api.conftest import problem_of
from tests.conftest import Server
from tests.live_tables import follow_jobs

Claimed = Callable[..., dict[str, Any]]


def booked(client: httpx.Client) -> dict[str, Any]:
    """What jobs without a model used, over all days."""
    answer = client.get("/usage", params={"model": "", "since": "2000-01-01"})
    assert answer.status_code == 200, answer.text
    rows = answer.json()["usage"]
    names = (
        "jobs",
        "prompt_tokens",
        "completion_tokens",
        "load_seconds",
        "prefill_seconds",
        "decode_seconds",
    )
    return {name: sum(row[name] for row in rows) for name in names}


def complete(client: httpx.Client, job: dict[str, Any], usage: str) -> httpx.Response:
    body = f'{{"lease_token":"{job["lease_token"]}","usage":{usage}}}'
    return client.post(f"/jobs/{job['job_id']}/complete", content=body)


@pytest.mark.parametrize(
    ("usage", "field"),
    [
        ('{"prompt_tokens":1.5}', "usage.prompt_tokens"),
        ('{"prompt_tokens":"abc"}', "usage.prompt_tokens"),
        ('{"completion_tokens":-1}', "usage.completion_tokens"),
        ('{"completion_tokens":true}', "usage.completion_tokens"),
        ('{"prompt_tokens":1000000000000000000000000000000}', "usage.prompt_tokens"),
        ('{"prompt_tokens":1e30}', "usage.prompt_tokens"),
        ('{"prompt_tokens":{"cached":1}}', "usage.prompt_tokens"),
        ('{"prompt_tokens":1,"prompt_tokens":[]}', "usage.prompt_tokens"),
        ('{"load_seconds":1e300}', "usage.load_seconds"),
        ('{"prefill_seconds":-0.1}', "usage.prefill_seconds"),
        ('{"decode_seconds":"1"}', "usage.decode_seconds"),
        ("[]", "usage"),
        ('"many"', "usage"),
        ("7", "usage"),
    ],
)
def test_a_usage_that_cannot_be_is_refused_by_name_and_the_job_goes_on(
    client: httpx.Client, claimed: Claimed, usage: str, field: str
) -> None:
    job = claimed()
    document = problem_of(complete(client, job, usage), 422, "invalid_request")
    assert [error["field"] for error in document["errors"]] == [field]
    bulk = f'{{"job_id":"{job["job_id"]}","verb":"complete","lease_token":"{job["lease_token"]}","usage":{usage}}}'
    problem_of(client.post("/settlements", content=f'{{"settlements":[{bulk}]}}'), 422, "invalid_request")
    assert complete(client, job, '{"prompt_tokens":0}').status_code == 200


def test_figures_are_summed_and_whatever_stands_beside_them_is_kept(
    client: httpx.Client, claimed: Claimed, read: Callable[..., dict[str, Any]]
) -> None:
    before = booked(client)
    usage = (
        '{"prompt_tokens":1000000000000,"completion_tokens":null,"load_seconds":1.5e1,"decode_seconds":1E-3,'
        '"prefill_seconds":2,"cost":"\\u0000","big":100000000000000000000000000000,"more":{"prompt_tokens":9}}'
    )
    job = claimed()
    assert complete(client, job, usage).status_code == 200
    assert read(job["job_id"])["usage"] == json.loads(usage)
    plain = claimed()
    assert complete(client, plain, usage.replace('"cost":"\\u0000",', "")).status_code == 200
    after = booked(client)
    # A NUL in it cannot be taken apart by PostgreSQL: counted as a job, but without figures.
    assert after["jobs"] - before["jobs"] == 2
    assert after["prompt_tokens"] - before["prompt_tokens"] == 10**12
    assert after["load_seconds"] - before["load_seconds"] == pytest.approx(15)
    assert after["prefill_seconds"] - before["prefill_seconds"] == pytest.approx(2)
    assert after["decode_seconds"] - before["decode_seconds"] == pytest.approx(0.001)


def test_no_usage_is_no_usage(client: httpx.Client, claimed: Claimed, read: Callable[..., Any]) -> None:
    for usage in ("null", "{}"):
        job = claimed()
        assert complete(client, job, usage).status_code == 200
        assert read(job["job_id"])["usage"] is None


def test_what_a_deleted_job_used_stays_in_the_sums(client: httpx.Client, claimed: Claimed) -> None:
    before = booked(client)
    for number in range(3):
        job = claimed()
        assert complete(client, job, '{"prompt_tokens":7}').status_code == 200
        if number == 0:
            assert client.delete(f"/jobs/{job['job_id']}").status_code == 204
    queue = job["queue"]
    operation = {"action": "delete", "filter": {"queue": queue}}
    answer = client.post("/bulk-operations", json=operation, headers={"prefer": "wait=30"})
    assert answer.status_code < 300, answer.text
    after = booked(client)
    assert (after["jobs"] - before["jobs"], after["prompt_tokens"] - before["prompt_tokens"]) == (3, 21)


OLD_ROWS = [
    '{"prompt_tokens":1.5,"completion_tokens":3}',
    '{"prompt_tokens":"abc","completion_tokens":3}',
    '{"prompt_tokens":1e30,"completion_tokens":3}',
    '{"prompt_tokens":-5,"load_seconds":-1e300,"completion_tokens":3}',
    '{"prompt_tokens":{"a":[1]},"decode_seconds":1e308,"completion_tokens":3}',
    '{"prompt_tokens":"\\u0000","completion_tokens":3}',
    '{"prompt_tokens":"NaN","load_seconds":"Infinity","prefill_seconds":null,"completion_tokens":3}',
    '{"prompt_tokens":18446744073709551615,"completion_tokens":3}',
]


def test_usage_from_before_it_was_checked_stops_neither_the_sums_nor_the_booking(
    client: httpx.Client, api: Server, claimed: Claimed
) -> None:
    before = booked(client)
    jobs = [claimed() for _ in OLD_ROWS]
    for job in jobs:
        assert complete(client, job, '{"prompt_tokens":1}').status_code == 200
    asyncio.run(_write_usage(api.database_url, [job["job_id"] for job in jobs]))
    after = booked(client)
    assert after["completion_tokens"] - before["completion_tokens"] == 3 * (len(OLD_ROWS) - 1)
    for job in jobs:
        assert client.delete(f"/jobs/{job['job_id']}").status_code == 204
    assert booked(client)["completion_tokens"] == after["completion_tokens"]


async def _write_usage(url: str, job_ids: list[str]) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.executemany(
            "UPDATE jobs SET usage = $2, usage_booked = false WHERE id = $1",
            list(zip(job_ids, OLD_ROWS, strict=True)),
        )
        await follow_jobs(connection)
    finally:
        await connection.close()
