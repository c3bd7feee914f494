"""The dispatcher on a real database against receivers of every temper; time passes in the table."""

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook
from structlog.testing import capture_logs

from app.events.hub import Hub
from app.jobs.states import Verb
from app.outbound.guard import AddressPolicy
from app.secretbox import SecretBox
from app.store.database import Database
from app.store.outbox import ALL_DELIVERIES, redeliver
from app.store.settle import Settlement, settle
from app.webhooks import circuit, deliverer
from app.webhooks.deliverer import LADDER_SECONDS, host_of
from tests.conftest import free_port
from tests.outbound.receivers import Receiver, Visit
from tests.patience import until
from tests.store.making import claim, job, put, put_one, running
from tests.webhooks.dispatching import answering, dispatching, let_time_pass, over, parsed, rows

SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3)]


async def test_the_whole_ladder_is_walked_to_given_up_and_no_further(database: Database) -> None:
    async with Receiver(answering(400)) as receiver, dispatching(database):
        job_id = await put_one(database, webhook_url=receiver.url)
        for tries, rung in enumerate(LADDER_SECONDS, start=1):

            async def tried(tries: int = tries) -> Any:
                [row] = await rows(database, job_id)
                return row if row["tries"] == tries else None

            row = await until(tried)
            assert row["state"] == "pending"
            assert (row["last_status"], row["last_error"]) == (400, "the receiver answered 400")
            assert 0.8 * rung - 1 <= row["due_in"] <= 1.2 * rung
            await let_time_pass(database, job_id)
        [row] = await until(lambda: over(database, job_id))
        assert (row["state"], row["tries"]) == ("given_up", 8)
        assert len(receiver.requests) == 8
        ids = {parsed(request)[0]["webhook-id"] for request in receiver.requests}
        assert ids == {f"{job_id}-1"}


async def test_redelivering_sends_what_was_given_up_on_again_under_the_same_id(database: Database) -> None:
    hub = Hub(database, None, 1)
    async with Receiver(answering(410, times=1)) as receiver, dispatching(database, hub=hub):
        job_id = await put_one(database, webhook_url=receiver.url)
        [row] = await until(lambda: over(database, job_id))
        assert (row["state"], row["tries"], row["last_status"]) == ("given_up", 1, 410)
        hub.announce(await redeliver(database, job_id, "default", 1))
        [row] = await until(lambda: over(database, job_id))
        assert (row["state"], row["tries"], row["last_status"]) == ("delivered", 1, 204)
        first, second = (parsed(request) for request in receiver.requests)
        assert first[0]["webhook-id"] == second[0]["webhook-id"] == f"{job_id}-1"
        assert first[1] == second[1]


async def test_a_delivery_is_given_up_on_at_once_when_the_receiver_is_gone_for_good(
    database: Database,
) -> None:
    async with Receiver(answering(410)) as receiver, dispatching(database):
        job_id, token = await running(database, webhook_url=receiver.url)
        await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1")])
        found = await until(lambda: over(database, job_id))
        assert [(row["state"], row["tries"]) for row in found] == [("given_up", 1)] * 4


async def test_retry_after_is_honoured(database: Database) -> None:
    async with Receiver(answering(503, headers="retry-after: 120\r\n")) as receiver, dispatching(database):
        job_id = await put_one(database, webhook_url=receiver.url)

        async def tried() -> Any:
            [row] = await rows(database, job_id)
            return row if row["tries"] else None

        assert (await until(tried))["due_in"] == pytest.approx(120, abs=5)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 500])
async def test_only_2xx_counts_as_delivered_and_redirects_are_not_followed(
    database: Database, status: int
) -> None:
    async with Receiver() as elsewhere:
        script = answering(status, headers=f"location: {elsewhere.url}\r\n")
        async with Receiver(script) as receiver, dispatching(database):
            job_id = await put_one(database, webhook_url=receiver.url)

            async def tried() -> Any:
                [row] = await rows(database, job_id)
                return row if row["tries"] else None

            assert (await until(tried))["state"] == "pending"
        assert elsewhere.accepted == 0


async def test_a_job_with_no_secret_is_signed_by_the_server_with_every_secret_it_has(
    database: Database,
) -> None:
    async with Receiver() as receiver, dispatching(database, server_secrets=tuple(SECRETS[:2])):
        job_id = await put_one(database, webhook_url=receiver.url)
        await until(lambda: over(database, job_id))
        headers, body = parsed(receiver.requests[0])
        for secret in SECRETS[:2]:
            Webhook(secret).verify(body, headers)
        assert len(headers["webhook-signature"].split(" ")) == 2


async def test_a_jobs_own_secret_replaces_the_servers(database: Database) -> None:
    box = SecretBox([bytes(32)])
    async with Receiver() as receiver, dispatching(database, box=box, server_secrets=(SECRETS[0],)):
        new = job(webhook_url=receiver.url)
        new.sealed_webhook_secret = box.seal(SECRETS[2], new.id)
        await put(database, new)
        await until(lambda: over(database, new.id))
        headers, body = parsed(receiver.requests[0])
        Webhook(SECRETS[2]).verify(body, headers)
        assert len(headers["webhook-signature"].split(" ")) == 1


async def test_without_any_secret_a_delivery_is_not_signed(database: Database) -> None:
    async with Receiver() as receiver, dispatching(database):
        job_id = await put_one(database, webhook_url=receiver.url)
        await until(lambda: over(database, job_id))
        assert "webhook-signature" not in parsed(receiver.requests[0])[0]


async def test_a_secret_that_cannot_be_opened_is_never_replaced_by_no_signature(database: Database) -> None:
    async with Receiver() as receiver, dispatching(database, box=SecretBox([bytes(32)])):
        new = job(webhook_url=receiver.url)
        new.sealed_webhook_secret = SecretBox([bytes([7]) * 32]).seal(SECRETS[0], new.id)
        await put(database, new)

        async def tried() -> Any:
            [row] = await rows(database, new.id)
            return row if row["tries"] else None

        row = await until(tried)
        assert row["state"] == "pending"
        assert "secret" in row["last_error"]
        assert receiver.accepted == 0


async def test_a_name_that_resolves_to_a_refused_address_only_later_is_recorded_and_never_connected_to(
    database: Database,
) -> None:
    async with Receiver() as receiver, dispatching(database, policy=AddressPolicy()):
        url = f"http://localhost.localdomain:{receiver.port}/"
        direct, named = await put(
            database, *[job(webhook_url=each) for each in (receiver.url, f"http://[::1]:{receiver.port}/")]
        )
        other = await put_one(database, webhook_url=url)
        for job_id in (direct, named):
            [row] = await until(partial(over, database, job_id))
            assert row["state"] == "refused"
            assert "loopback" in row["last_error"]
            assert row["delivered_at"] is None

        async def tried() -> Any:
            [row] = await rows(database, other)
            return row if row["tries"] else None

        # Refused where the machine knows the name, unreachable where it does not; called in neither case.
        assert (await until(tried))["state"] in ("refused", "pending")
        assert receiver.accepted == 0


async def test_deliveries_of_one_job_never_overtake_each_other(database: Database) -> None:
    """The first try of the first one fails: the others wait for its second."""
    async with Receiver(answering(400, times=1)) as receiver, dispatching(database):
        job_id, token = await running(database, webhook_url=receiver.url)
        await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1")])

        async def tried() -> Any:
            found = await rows(database, job_id)
            return found if found[0]["tries"] else None

        found = await until(tried)
        assert [row["tries"] for row in found] == [1, 0, 0, 0]
        await let_time_pass(database, job_id, "0")
        await until(lambda: over(database, job_id))
        seqs = [json.loads(parsed(request)[1])["data"]["seq"] for request in receiver.requests]
        assert seqs == [1, 1, 2, 3, 4]


async def all_arrive_once_and_in_order(
    database: Database, receiver: Receiver, job_ids: Sequence[str]
) -> None:
    for job_id in job_ids:
        await until(partial(over, database, job_id))
    arrived: dict[str, list[int]] = {}
    for request in receiver.requests:
        said = json.loads(parsed(request)[1])["data"]
        arrived.setdefault(said["job_id"], []).append(said["seq"])
    assert arrived == {job_id: [1, 2, 3, 4] for job_id in job_ids}


async def test_a_hundred_jobs_each_arrive_whole_and_in_order(database: Database) -> None:
    async with Receiver(answering(204)) as receiver, dispatching(database):
        job_ids = await put(database, *[job(webhook_url=receiver.url) for _ in range(100)])
        for _ in range(2):
            claimed = await claim(database, limit=60)
            await settle(
                database,
                [Settlement(row.id, row.lease_token, Verb.COMPLETE, result="1") for row in claimed],
            )
        await all_arrive_once_and_in_order(database, receiver, job_ids)


async def test_two_replicas_share_the_work_and_nothing_is_sent_twice(database: Database) -> None:
    async with Receiver(answering(204)) as receiver, dispatching(database), dispatching(database):
        job_ids = await put(database, *[job(webhook_url=receiver.url) for _ in range(100)])
        claimed = await claim(database, limit=100)
        completed = [Settlement(row.id, row.lease_token, Verb.COMPLETE, result="1") for row in claimed]
        await settle(database, completed)
        await all_arrive_once_and_in_order(database, receiver, job_ids)


async def test_at_most_so_many_are_sent_to_one_receiver_at_once(database: Database) -> None:
    now, most = 0, 0
    gate = asyncio.Event()

    async def script(visit: Visit) -> None:
        nonlocal now, most
        while True:
            await visit.read_request()
            now += 1
            most = max(most, now)
            if most >= 3:
                gate.set()
            await gate.wait()
            now -= 1
            await visit.send(b"HTTP/1.1 204 X\r\n\r\n")

    async with Receiver(script) as receiver, dispatching(database, host_concurrency=3):
        job_ids = await put(database, *[job(webhook_url=receiver.url) for _ in range(30)])
        for job_id in job_ids:
            await until(partial(over, database, job_id))
        assert most == 3


async def test_a_dead_receiver_opens_its_circuit_and_is_probed_until_it_is_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit, "LONGEST_PAUSE_SECONDS", 1.0)
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook"
    with capture_logs() as lines:
        await _dies_and_comes_back(database, port, url)
    told = [line for line in lines if line["event"].startswith("webhooks.circuit")]
    assert [line["event"] for line in told] == ["webhooks.circuit_opened", "webhooks.circuit_closed"]
    assert {line["receiver"] for line in told} == {f"127.0.0.1:{port}"}
    assert told[0]["problem"]
    assert told[1]["seconds"] >= 0


async def _dies_and_comes_back(database: Database, port: int, url: str) -> None:
    async with dispatching(database) as running:
        job_ids = await put(database, *[job(webhook_url=url) for _ in range(40)])

        async def is_open() -> bool:
            found = running._receivers.get(host_of(url))
            return found is not None and found.is_open

        await until(is_open)
        tries = await database.fetchval(f"SELECT sum(tries) FROM {ALL_DELIVERIES} AS deliveries")
        assert tries < 25, "the circuit did not keep the others from trying"
        untouched = await database.fetchval("SELECT count(*) FROM outbox WHERE tries = 0")
        assert untouched > 10
        receiver = Receiver(answering(204))
        receiver._server = await asyncio.start_server(receiver._serve, "127.0.0.1", port)
        try:
            # Those that were not tried lost no rung of their ladder: they leave as soon as it is back.
            delivered = "SELECT count(*) >= $1 FROM deliveries WHERE state = 'delivered'"

            async def untried_are_delivered() -> bool:
                return bool(await database.fetchval(delivered, untouched))

            await until(untried_are_delivered)
        finally:
            await receiver.__aexit__()
        assert not await is_open()
    assert len(job_ids) == 40


async def test_while_the_circuit_is_open_what_is_long_overdue_counts_as_tried(database: Database) -> None:
    url = f"http://127.0.0.1:{free_port()}/hook"
    async with dispatching(database) as running:
        await put(database, *[job(webhook_url=url) for _ in range(40)])

        async def is_open() -> bool:
            found = running._receivers.get(host_of(url))
            return found is not None and found.is_open

        await until(is_open)
        running._receivers[host_of(url)].open_until = time.monotonic() + 3600
        await database.execute("UPDATE outbox SET next_try_at = now() - interval '2 min'")

        async def all_waiting() -> bool:
            return not await database.fetchval("SELECT count(*) FROM outbox WHERE next_try_at <= now()")

        await until(all_waiting)
        error = await database.fetchval(
            "SELECT last_error FROM outbox WHERE last_error LIKE 'not sent%' LIMIT 1"
        )
        assert "in a row" in error


async def test_a_long_answer_keeps_its_lease(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliverer, "LEASE_SECONDS", 0.6)
    monkeypatch.setattr(deliverer, "RENEW_SECONDS", 0.1)
    release = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.read_request()
        await release.wait()
        await visit.send(b"HTTP/1.1 204 X\r\n\r\n")

    async with Receiver(script) as receiver, dispatching(database), dispatching(database):
        job_id = await put_one(database, webhook_url=receiver.url)
        [first] = await until(lambda: _leased(database, job_id))

        async def renewed() -> bool:
            [row] = await rows(database, job_id)
            return bool((row["leased_until"] - first["leased_until"]).total_seconds() > 1.2)

        await until(renewed)
        release.set()
        await until(lambda: over(database, job_id))
        assert receiver.accepted == 1


async def _leased(database: Database, job_id: str) -> list[dict[str, Any]]:
    return [row for row in await rows(database, job_id) if row["leased_until"] is not None]


async def test_stopping_lets_go_of_what_is_not_finished(database: Database) -> None:
    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.wait_for_hang_up()

    async with Receiver(script) as receiver:
        async with dispatching(database):
            job_id = await put_one(database, webhook_url=receiver.url)
            await until(lambda: _leased(database, job_id))

            async def arrived() -> bool:
                return bool(receiver.requests)

            await until(arrived)
        [row] = await rows(database, job_id)
        assert row["state"] == "pending"
        assert row["tries"] == 0
        free = await database.fetchval("SELECT leased_until <= now() FROM outbox WHERE job_id = $1", job_id)
        assert free
