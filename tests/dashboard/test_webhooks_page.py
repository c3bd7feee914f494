"""/ui/webhooks: receivers and their troubles, what was given up on, and sending it again."""

import html
import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import asyncpg
import httpx
import pytest

from app.api.job_documents import Redelivery
from app.dashboard.webhooks import _told
from app.identity.scopes import ALL_SCOPES, Scope
from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor, text_of

MISSING = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
HOSTILE = "<script>alert('h')</script>\"&\u202e" + "h" * 10_000


class Receiver(ThreadingHTTPServer):
    """Answers all alike, as it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 410
        self.seen: list[str] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append(self.headers["webhook-id"])
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not to where the tests write."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def person(guarded: Server, stranger: Visitor, tenant: str) -> Visitor:
    """An operator of the same tenant."""
    stranger.sign_in(guarded.key(tenant, *ALL_SCOPES))
    return stranger


def submit(caller: httpx.Client, receiver: Receiver, count: int = 1) -> list[str]:
    job = {"kind": "noop", "state_webhook_url": f"http://{receiver.host}/hook", "webhook_events": ["done"]}
    answer = caller.post("/jobs/batch", json={"jobs": [job] * count})
    assert answer.status_code == 202, answer.text
    return [each["job_id"] for each in answer.json()["jobs"]]


def states(caller: httpx.Client, job_ids: list[str]) -> list[str]:
    return [
        each["state"] for job in job_ids for each in caller.get(f"/jobs/{job}/webhooks").json()["deliveries"]
    ]


def given_up(caller: httpx.Client, receiver: Receiver, count: int = 1) -> list[str]:
    """Jobs whose deliveries the receiver does not want: it answers 410."""
    jobs = submit(caller, receiver, count)
    wait_until(lambda: states(caller, jobs) == ["given_up"] * count)
    return jobs


def row_of(page: str, text: str, table: str = '<table id="receivers">') -> str:
    found = re.search(rf"{table}.*?</table>", page, re.DOTALL)
    rows = re.findall(r"<tr data-row.*?</tr>", found[0], re.DOTALL) if found else []
    return next((text_of(row) for row in rows if text in row), "")


def jobs_on(page: str) -> list[str]:
    return re.findall(r'data-href="/ui/jobs/(\w{26})#deliveries"', page)


def test_receivers_are_shown_with_how_they_fare(
    caller: httpx.Client, person: Visitor, receiver: Receiver
) -> None:
    receiver.status = 500
    submit(caller, receiver, 20)

    def row() -> str:
        return row_of(person.get("/ui/webhooks"), receiver.host)

    # After fourteen failures in a row it is left alone.
    said = wait_until(lambda: text if "left alone" in (text := row()) else "", 30)
    assert re.search(r"✕ left alone 20 \d+ failing", said)
    assert "500 the receiver answered 500" in said
    wait_until(lambda: "attention" in text_of(person.get("/ui/webhooks")))
    receiver.status = 200
    said = wait_until(lambda: text if re.search(r"\d+ delivered, \d+ failed", text := row()) else "", 60)
    assert "% failed" in said


def test_what_was_given_up_on_is_listed_with_its_job_and_by_receiver(
    caller: httpx.Client, person: Visitor, receiver: Receiver
) -> None:
    jobs = given_up(caller, receiver, 2)
    page = person.get("/ui/webhooks")
    assert jobs_on(page) == sorted(jobs, reverse=True)
    assert "✕ given up" in text_of(page)
    assert "410 the receiver answered 410" in text_of(page)
    assert f'href="/ui/jobs/{jobs[0]}"' in page
    assert jobs_on(person.get(f"/ui/webhooks?host={receiver.host}")) == sorted(jobs, reverse=True)
    assert jobs_on(person.get("/ui/webhooks?host=another.example")) == []
    assert jobs_on(person.get("/ui/webhooks?state=given_up")) == sorted(jobs, reverse=True)
    # A host without its port is all of them, and no receiver to send everything to again.
    assert set(jobs) <= set(jobs_on(whole := person.get("/ui/webhooks?host=127.0.0.1")))
    assert "/ui/webhooks/redeliver?host=127.0.0.1&" not in whole
    for state in ("refused", "pending", "delivered"):
        assert jobs_on(person.get(f"/ui/webhooks?state={state}")) == [], state
    assert "No delivery to another.example is given up or refused." in text_of(
        person.get("/ui/webhooks?host=another.example")
    )


def test_one_delivery_is_sent_again_and_the_page_is_where_it_was(
    caller: httpx.Client, person: Visitor, receiver: Receiver
) -> None:
    [job] = given_up(caller, receiver)
    receiver.status = 200
    here = f"/ui/webhooks?host={receiver.host.replace(':', '%3A')}"
    page = person.get(here)
    action = re.search(r'action="(/ui/webhooks/deliveries/[^"]+/redeliver)"', page)
    assert action is not None
    assert f'name="back" value="{here}"' in page
    answer = person.post(action[1], {"back": here})
    assert (answer.status_code, answer.headers["location"]) == (303, here)
    assert "The delivery of done is due now." in text_of(person.get(here))
    wait_until(lambda: states(caller, [job]) == ["delivered"])
    assert receiver.seen[0] == receiver.seen[1]
    page = person.get("/ui/webhooks?state=delivered")
    assert jobs_on(page) == [job]
    assert 'data-confirm="Send it once more?"' in page
    answer = person.post(action[1], {"back": "https://evil.example/"})
    assert answer.headers["location"] == "/ui/webhooks"


def test_all_that_a_receiver_missed_is_counted_first_and_then_sent_again(
    caller: httpx.Client, person: Visitor, receiver: Receiver
) -> None:
    jobs = given_up(caller, receiver, 3)
    page = person.get(f"/ui/webhooks?host={receiver.host}")
    link = re.search(r'href="(/ui/webhooks/redeliver\?[^"]*state=given_up)"', page)
    assert link is not None
    dry_run = person.get(html.unescape(link[1]))
    assert f"3 deliveries to {receiver.host} were given up." in text_of(dry_run)
    assert states(caller, jobs) == ["given_up"] * 3, "counted only"
    receiver.status = 200
    fields = dict(re.findall(r'<input type="hidden" name="(host|state)" value="([^"]*)">', dry_run))
    assert "3 deliveries are due now." in person.do("/ui/webhooks/redeliver", fields)
    wait_until(lambda: states(caller, jobs) == ["delivered"] * 3)
    assert f"No delivery to {receiver.host} was given up." in text_of(person.get(html.unescape(link[1])))


def test_what_takes_too_long_for_one_request_is_gone_on_with() -> None:
    moved = Redelivery(
        host="a", state="refused", dry_run=False, matched=1200, redelivered=1200, next_cursor="x"
    )
    said = _told(moved)
    assert (said.text, said.detail) == ("1\u202f200 deliveries are due now.", "There are more.")
    assert said.undo is not None
    assert said.undo.fields == {"host": "a", "state": "refused", "cursor": "x"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"host": "", "state": "given_up"}, "host: expected a string of length >= 1"),
        ({"host": "a", "state": "delivered"}, "state: must be one of given_up, refused"),
        ({"host": "a", "state": "given_up", "cursor": "nonsense"}, "cursor: is not a cursor of ours"),
        ({"host": "x" * 5000, "state": "given_up"}, "host: expected a string of length <= 2048"),
        ({}, "host: expected a string of length >= 1"),
    ],
)
def test_what_cannot_be_sent_again_is_said(person: Visitor, fields: dict[str, str], said: str) -> None:
    person.get("/ui/webhooks")
    assert said in person.do("/ui/webhooks/redeliver", fields)


@pytest.mark.parametrize("query", ["", "?host=", "?host=a&state=delivered", f"?host={'x' * 3000}", "?hots=a"])
def test_nothing_is_counted_for_what_cannot_be(person: Visitor, query: str) -> None:
    person.get(f"/ui/webhooks/redeliver{query}", 422)


@pytest.mark.parametrize(
    "named", [f"{MISSING}-1", f"{MISSING}-x", MISSING, "nothing", "-", "%00", "x" * 3000]
)
def test_there_is_nothing_to_send_of_a_delivery_that_is_not(person: Visitor, named: str) -> None:
    person.get("/ui/webhooks")
    said = person.do(f"/ui/webhooks/deliveries/{named}/redeliver")
    assert "There is no such" in said


@pytest.mark.parametrize(
    "query", ["state=lost", "cursor=nonsense", "hots=a", "state=%00", f"host={'x' * 3000}"]
)
def test_a_list_that_cannot_be_is_refused(person: Visitor, query: str) -> None:
    person.get(f"/ui/webhooks?{query}", 422)


def test_deliveries_of_other_tenants_are_neither_seen_nor_sent(
    guarded: Server, caller: httpx.Client, person: Visitor, receiver: Receiver
) -> None:
    with guarded.client(guarded.key(f"t-{uuid.uuid4().hex[:12]}", *ALL_SCOPES)) as other:
        [job] = given_up(other, receiver)
        for state in ("", "&state=all"):
            assert jobs_on(person.get(f"/ui/webhooks?host={receiver.host}{state}")) == []
        [delivery] = other.get(f"/jobs/{job}/webhooks").json()["deliveries"]
        path = f"/ui/webhooks/deliveries/{delivery['delivery_id']}/redeliver"
        assert "There is no such delivery." in person.do(path)
        said = person.do("/ui/webhooks/redeliver", {"host": receiver.host, "state": "given_up"})
        assert "0 deliveries are due now." in said
        assert states(other, [job]) == ["given_up"]


def test_who_may_only_look_sends_nothing(
    guarded: Server, tenant: str, caller: httpx.Client, stranger: Visitor, receiver: Receiver
) -> None:
    given_up(caller, receiver)
    stranger.sign_in(guarded.key(tenant, Scope.ADMIN_READ))
    page = stranger.get(f"/ui/webhooks?host={receiver.host}")
    assert "given up" in text_of(page)
    assert "redeliver" not in page
    assert "Send" not in text_of(page)
    assert stranger.post("/ui/webhooks/redeliver").status_code == 403


async def test_what_receivers_say_is_shown_as_text(
    guarded: Server, caller: httpx.Client, person: Visitor, receiver: Receiver
) -> None:
    jobs = given_up(caller, receiver, 2)
    connection = await asyncpg.connect(guarded.database_url)
    await connection.execute(
        "UPDATE deliveries SET last_error = $1, state = 'refused' WHERE job_id = $2", HOSTILE, jobs[0]
    )
    await connection.close()
    page = person.get("/ui/webhooks")
    assert "<script>alert" not in page
    assert HOSTILE in text_of(page)
    # Both that were given up on and refused, in one order.
    assert jobs_on(page) == sorted(jobs, reverse=True)
    assert "⊘ refused" in text_of(page)
    hostile = person.get(f"/ui/webhooks?host={quote(HOSTILE[:1000])}")
    assert "<script>alert" not in hostile


async def test_more_deliveries_than_a_page_has_are_paged(
    guarded: Server, caller: httpx.Client, person: Visitor, receiver: Receiver
) -> None:
    jobs = given_up(caller, receiver, 70)
    connection = await asyncpg.connect(guarded.database_url)
    await connection.execute(
        "UPDATE deliveries SET state = 'refused' WHERE job_id = ANY ($1::text[])", jobs[::2]
    )
    await connection.close()
    seen: list[str] = []
    path = f"/ui/webhooks?host={receiver.host}"
    for _ in range(2):
        page = person.get(path)
        seen += jobs_on(page)
        older = re.search(r'href="([^"]*)">Older deliveries', page)
        path = html.unescape(older[1]) if older else ""
    assert seen == sorted(jobs, reverse=True)
    assert path == "", "there are no more"


def test_a_page_without_webhooks_teaches_to_ask_for_them(server: Server) -> None:
    """On a server of its own: receivers are those of all tenants."""
    visitor = Visitor(server.url)
    with visitor.http:
        page = visitor.get("/ui/webhooks")
        assert "Deliveries" not in text_of(page)
        assert f"curl {server.url}/jobs -d" in text_of(page)
        assert "state_webhook_url" in text_of(page)
        assert "No delivery was ever made." in text_of(visitor.get("/ui/webhooks?state=all"))
