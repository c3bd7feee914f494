"""Receivers as operators see them: who is in trouble and how, and all that was given up on sent again."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.serving import serving
from tests.webhooks.conftest import MakeReceiver

LOCAL = {"FOREMAN_AUTH": "on", "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8", "FOREMAN_POLL_SECONDS": "0.2"}


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("server"), **LOCAL) as server:
        yield server


@pytest.fixture
def admin(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def submit(client: httpx.Client, url: str, number: int = 1) -> list[str]:
    job = {"kind": "noop", "state_webhook_url": url, "webhook_events": ["done"]}
    answer = client.post("/jobs/batch", json={"jobs": [job] * number})
    assert answer.status_code == 202, answer.text
    return [each["job_id"] for each in answer.json()["jobs"]]


def shown(client: httpx.Client, host: str) -> dict[str, Any] | None:
    answer = client.get("/webhooks/receivers")
    assert answer.status_code == 200, answer.text
    return next((each for each in answer.json()["receivers"] if each["host"] == host), None)


def states(client: httpx.Client, job_ids: list[str]) -> list[str]:
    return [
        each["state"] for job in job_ids for each in client.get(f"/jobs/{job}/webhooks").json()["deliveries"]
    ]


def redeliver(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/webhooks/redeliver", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_receivers_are_listed_with_their_troubles_the_most_troubled_first(
    admin: httpx.Client, make_receiver: MakeReceiver
) -> None:
    well, broken, gone = make_receiver("ok"), make_receiver("500"), make_receiver("410")
    for receiver, number in ((well, 2), (broken, 20), (gone, 3)):
        submit(admin, receiver.url, number)

    def is_told() -> bool:
        """Circuits at once; the day's counts every few seconds."""
        found = [shown(admin, each.host) for each in (well, broken, gone)]
        if None in found:
            return False
        one, two, three = (each for each in found if each is not None)
        told = (one["today"]["delivered"], two["circuit"], three["today"]["given_up"])
        return told == (2, "open", 3) and two["today"]["retried"] >= 14

    wait_until(is_told, 30)
    one, two, three = (shown(admin, each.host) for each in (well, broken, gone))
    assert one is not None
    assert two is not None
    assert three is not None
    assert one == {
        "host": well.host,
        "pending": 0,
        "failing": 0,
        "oldest_pending_at": None,
        "next_try_at": None,
        "last_status": None,
        "last_error": None,
        "circuit": "closed",
        "today": {"delivered": 2, "retried": 0, "given_up": 0, "refused": 0},
    }
    assert (two["pending"], two["last_status"], two["last_error"]) == (20, 500, "the receiver answered 500")
    assert two["failing"] >= 14
    assert two["oldest_pending_at"] <= two["next_try_at"]
    assert (three["pending"], three["circuit"], three["today"]["given_up"]) == (0, "closed", 3)
    order = [each["host"] for each in admin.get("/webhooks/receivers").json()["receivers"]]
    assert order.index(broken.host) < order.index(gone.host) < order.index(well.host)


def test_what_was_given_up_on_is_counted_and_then_sent_again(
    server: Server, admin: httpx.Client, make_receiver: MakeReceiver
) -> None:
    gone = make_receiver("410")
    jobs = submit(admin, gone.url, 5)
    wait_until(lambda: states(admin, jobs) == ["given_up"] * 5)
    with server.client(server.key("acme", "admin:read", "admin:write")) as stranger:
        assert redeliver(stranger, host=gone.host)["matched"] == 0
    counted = redeliver(admin, host=gone.host.upper(), dry_run=True)
    nothing = {"host": gone.host, "state": "given_up", "dry_run": True, "redelivered": 0, "next_cursor": None}
    assert counted == nothing | {"matched": 5}
    assert redeliver(admin, host=gone.host, state="refused", dry_run=True)["matched"] == 0
    assert redeliver(admin, host="another.example", dry_run=True)["matched"] == 0
    before = gone.count()
    answered = redeliver(admin, host=gone.host)
    assert (answered["matched"], answered["redelivered"], answered["dry_run"]) == (5, 5, False)
    wait_until(lambda: gone.count() == before + 5)
    wait_until(lambda: states(admin, jobs) == ["given_up"] * 5)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "host"),
        ({"host": ""}, "host"),
        ({"host": "a\0b"}, "host"),
        ({"host": "x" * 3000}, "host"),
        ({"host": "h", "state": "delivered"}, "state"),
        ({"host": "h", "dry_run": "yes"}, "dry_run"),
        ({"host": "h", "cursor": "nonsense"}, "cursor"),
        ({"host": "h", "more": 1}, "more"),
    ],
)
def test_what_cannot_be_sent_again_is_refused_by_name(
    admin: httpx.Client, body: dict[str, Any], field: str
) -> None:
    answer = admin.post("/webhooks/redeliver", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["field"] == field
