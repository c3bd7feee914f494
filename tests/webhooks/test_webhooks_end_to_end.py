"""A job tells its receiver what becomes of it: real server, real receiver, real signatures."""

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import openai
import pytest
from standardwebhooks.webhooks import Webhook

from app.embedded import EmbeddedPostgres
from app.jobs.openai_events import ENDS
from app.jobs.states import RESERVED_EVENT_TYPES
from app.jobs.submission import NewJob
from app.secretbox import SecretBox
from app.store.database import Database
from tests.conftest import ROOT, MakeServer, Server, wait_until
from tests.serving import serving
from tests.store.making import job, put
from tests.webhooks.conftest import Arrival, MakeReceiver, ReceiverProcess

SECRET = "whsec_" + base64.b64encode(b"a secret of just enough bytes.").decode()
LOCAL = {"FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8", "FOREMAN_SECRET_KEY": "a passphrase long enough for this"}


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("server"), **LOCAL) as server:
        yield server


def submit(server: Server, **fields: object) -> str:
    answer = httpx.post(f"{server.url}/jobs", json={"kind": "noop", **fields})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


def deliveries(server: Server, job_id: str) -> list[dict[str, Any]]:
    answered: list[dict[str, Any]] = httpx.get(f"{server.url}/jobs/{job_id}/webhooks").json()["deliveries"]
    return answered


def all_over(server: Server, job_id: str, count: int = 4) -> bool:
    found = deliveries(server, job_id)
    return len(found) >= count and all(each["state"] != "pending" for each in found)


def verify(arrival: Arrival, secret: str) -> None:
    Webhook(secret).verify(arrival.body, arrival.headers)


def test_each_state_arrives_once_in_order_signed_and_with_all_its_fields(
    server: Server, receiver: ReceiverProcess
) -> None:
    job_id = submit(
        server,
        state_webhook_url=receiver.url,
        webhook_secret=SECRET,
        metadata={"order": "7"},
        payload={"any": "thing"},
    )
    wait_until(lambda: all_over(server, job_id))
    arrivals = receiver.arrivals()
    assert [each.message["type"] for each in arrivals] == [
        "job.queued",
        "job.loading",
        "job.working",
        "job.done",
    ]
    assert [each.headers["webhook-id"] for each in arrivals] == [f"{job_id}-{seq}" for seq in (1, 2, 3, 4)]
    states = [(each.message["data"]["previous_state"], each.message["data"]["state"]) for each in arrivals]
    assert states == [(None, "queued"), ("queued", "loading"), ("loading", "working"), ("working", "done")]
    assert [each.message["data"]["attempt"] for each in arrivals] == [0, 1, 1, 1]
    for arrival in arrivals:
        verify(arrival, SECRET)
        assert arrival.headers["content-type"] == "application/json"
        assert arrival.headers["user-agent"].startswith("Foreman/")
        assert arrival.message["timestamp"] == arrival.message["data"]["timestamp"]
    trace = httpx.get(f"{server.url}/jobs/{job_id}").json()["trace"]
    assert {each.headers["traceparent"] for each in arrivals} == {trace["traceparent"]}
    last = arrivals[-1].message["data"]
    assert last | {"timestamp": None} == {
        "job_id": job_id,
        "seq": 4,
        "state": "done",
        "previous_state": "working",
        "timestamp": None,
        "kind": "noop",
        "queue": "default",
        "model": None,
        "attempt": 1,
        "error": None,
        "result": None,
        "artifacts": [],
        "metadata": {"order": "7"},
    }
    listed = deliveries(server, job_id)
    assert set(listed[0]) == {
        "delivery_id", "seq", "type", "state", "tries", "last_status", "last_error", "next_try_at",
        "delivered_at",
    }  # fmt: skip
    assert [
        (each["seq"], each["type"], each["state"], each["tries"], each["last_status"]) for each in listed
    ] == [
        (1, "queued", "delivered", 1, 204),
        (2, "loading", "delivered", 1, 204),
        (3, "working", "delivered", 1, 204),
        (4, "done", "delivered", 1, 204),
    ]


def test_the_result_and_the_completion_of_a_chat_arrive_with_done(
    server: Server, receiver: ReceiverProcess
) -> None:
    job_id = submit(
        server,
        kind="chat",
        model="echo",
        messages=[{"role": "user", "content": "one two"}],
        state_webhook_url=receiver.url,
        webhook_events=["done"],
    )
    wait_until(lambda: all_over(server, job_id, 1))
    [arrival] = receiver.arrivals()
    said = arrival.message["data"]
    assert (said["model"], said["seq"], said["previous_state"]) == ("echo", 4, "working")
    assert said["result"] == httpx.get(f"{server.url}/jobs/{job_id}").json()["result"]
    assert [(each["name"], each["inline"]) for each in said["artifacts"]] == [("completion", "one two")]


def put_directly(server: Server, new: NewJob) -> None:
    """What no route of its own has submitted."""

    async def write() -> None:
        database = Database(server.database_url)
        await database.open()
        try:
            await put(database, new)
        finally:
            await database.close()

    asyncio.run(write())


def test_a_batch_that_is_cancelled_says_so_to_the_openai_client(
    server: Server, receiver: ReceiverProcess
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    new = job(
        kind="batch", run_at=later, webhook_url=receiver.url, webhook_shape="openai", webhook_events=ENDS
    )
    new.sealed_webhook_secret = SecretBox.from_setting(LOCAL["FOREMAN_SECRET_KEY"]).seal(SECRET, new.id)
    put_directly(server, new)
    httpx.post(f"{server.url}/jobs/{new.id}/cancel").raise_for_status()
    wait_until(lambda: all_over(server, new.id, 1))
    [arrival] = receiver.arrivals()
    with openai.OpenAI(api_key="none", webhook_secret=SECRET) as client:
        told = client.webhooks.unwrap(arrival.body, arrival.headers)
    assert isinstance(told, openai.types.webhooks.BatchCancelledWebhookEvent)
    assert told.data.id == f"batch_{new.id}"
    [listed] = deliveries(server, new.id)
    assert (listed["type"], listed["delivery_id"]) == ("cancelled", arrival.headers["webhook-id"])


def test_a_failure_arrives_with_its_error(server: Server, receiver: ReceiverProcess) -> None:
    job_id = submit(
        server,
        kind="chat",
        model="echo",
        messages=[],
        options={"echo_fail": "permanent"},
        state_webhook_url=receiver.url,
        webhook_events=["failed"],
    )
    wait_until(lambda: all_over(server, job_id, 1))
    [arrival] = receiver.arrivals()
    assert arrival.message["type"] == "job.failed"
    assert arrival.message["data"]["error"]["code"] == "echo_permanent"
    assert arrival.message["data"]["result"] is None


def test_progress_arrives_with_what_was_reported(server: Server, receiver: ReceiverProcess) -> None:
    job_id = submit(
        server, kind="report", state_webhook_url=receiver.url, webhook_events=["progress", "cancel_requested"]
    )
    claimed = httpx.post(f"{server.url}/claims", json={"worker": "w", "kinds": ["report"]}).json()["jobs"][0]
    token = {"lease_token": claimed["lease_token"]}
    assert (
        httpx.post(f"{server.url}/jobs/{job_id}/progress", json={**token, "fraction": 0.25}).status_code
        == 200
    )
    assert httpx.post(f"{server.url}/jobs/{job_id}/cancel").status_code == 202
    wait_until(lambda: all_over(server, job_id, 2))
    first, second = receiver.arrivals()
    assert first.message["type"] == "job.progress"
    assert first.message["data"]["event"]["fraction"] == 0.25
    assert first.message["data"]["state"] == "loading"
    assert second.message["type"] == "job.cancel_requested"


def test_a_large_result_is_referred_to_and_can_be_read_there(
    server: Server, receiver: ReceiverProcess
) -> None:
    job_id = submit(server, kind="large", state_webhook_url=receiver.url, webhook_events=["done"])
    claimed = httpx.post(f"{server.url}/claims", json={"worker": "w", "kinds": ["large"]}).json()["jobs"][0]
    result = {"text": "x" * 300_000}
    body = {"lease_token": claimed["lease_token"], "result": result}
    assert httpx.post(f"{server.url}/jobs/{job_id}/complete", json=body).status_code == 200
    wait_until(lambda: all_over(server, job_id, 1))
    [arrival] = receiver.arrivals()
    assert len(arrival.body) < 2000
    artifact = arrival.message["data"]["result"]["artifact"]
    read = httpx.get(server.url + artifact["url"])
    assert read.headers["content-type"] == artifact["content_type"] == "application/json"
    assert len(read.content) == artifact["size"]
    assert read.json() == result


def test_a_schedule_keeps_no_secret_and_no_url_that_cannot_be_called(server: Server) -> None:
    for fields, field in (
        ({"state_webhook_url": "http://10.0.0.1/"}, "state_webhook_url"),
        ({"state_webhook_url": "http://127.0.0.1:9/", "webhook_secret": SECRET}, "webhook_secret"),
    ):
        schedule = {"cron": "0 0 1 1 *", "job": {"kind": "noop", **fields}}
        answer = httpx.put(f"{server.url}/schedules/yearly", json=schedule)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == field


def test_a_delivery_is_sent_again_on_request_with_the_same_id_and_body(
    server: Server, receiver: ReceiverProcess
) -> None:
    job_id = submit(server, state_webhook_url=receiver.url, webhook_events=["done"])
    wait_until(lambda: all_over(server, job_id, 1))
    answer = httpx.post(f"{server.url}/jobs/{job_id}/webhooks/{job_id}-4/redeliver")
    assert answer.status_code == 202
    assert (answer.json()["delivery_id"], answer.json()["state"]) == (f"{job_id}-4", "pending")
    wait_until(lambda: receiver.count() == 2 and all_over(server, job_id, 1))
    first, second = receiver.arrivals()
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == f"{job_id}-4"
    assert first.body == second.body


def test_redelivering_what_is_not_there_is_a_404(server: Server, receiver: ReceiverProcess) -> None:
    job_id = submit(server, state_webhook_url=receiver.url)
    other = submit(server)
    for path in (
        f"/jobs/{job_id}/webhooks/{job_id}-99/redeliver",
        f"/jobs/{job_id}/webhooks/{other}-1/redeliver",
        f"/jobs/{job_id}/webhooks/nonsense/redeliver",
        f"/jobs/{job_id}/webhooks/{job_id}-99999999999999/redeliver",
        f"/jobs/{other}/webhooks/{other}-1/redeliver",
        "/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/webhooks/01ARZ3NDEKTSV4RRFFQ69G5FAV-1/redeliver",
    ):
        answer = httpx.post(server.url + path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    assert httpx.get(f"{server.url}/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/webhooks").status_code == 404
    assert deliveries(server, other) == []


def test_operators_list_deliveries_of_all_jobs_by_host_and_state_page_by_page(
    server: Server, make_receiver: MakeReceiver
) -> None:
    good, gone = make_receiver(), make_receiver("410")
    for _ in range(3):
        submit(server, state_webhook_url=good.url, webhook_events=["done"])
        submit(server, state_webhook_url=gone.url, webhook_events=["done"])

    def listed(**query: Any) -> dict[str, Any]:
        answer = httpx.get(f"{server.url}/webhooks", params=query)
        assert answer.status_code == 200, answer.text
        answered: dict[str, Any] = answer.json()
        return answered

    wait_until(lambda: len(listed(host=gone.host, state="given_up")["deliveries"]) == 3)
    wait_until(lambda: len(listed(host=good.host, state="delivered")["deliveries"]) == 3)
    assert listed(host=good.host, state="given_up")["deliveries"] == []
    assert {each["host"] for each in listed(host="127.0.0.1")["deliveries"]} >= {good.host, gone.host}
    first = listed(host=gone.host, limit=2)
    second = listed(host=gone.host, limit=2, cursor=first["next_cursor"])
    assert second["next_cursor"] is None
    seen = [each["job_id"] for each in first["deliveries"] + second["deliveries"]]
    assert len(seen) == 3
    assert seen == sorted(seen, reverse=True)
    assert first["deliveries"][0]["last_status"] == 410


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "lost"}, "state"),
        ({"limit": "0"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"cursor": "abc"}, "cursor"),
        ({"cursor": "MTowMUFSWjNOREVLVFNWNFJSRkZRNjlHNUZBVjp4"}, "cursor"),
        ({"color": "red"}, "color"),
        ({"host": "a\0b"}, "host"),
    ],
)
def test_a_wrong_filter_is_named(server: Server, query: dict[str, str], field: str) -> None:
    answer = httpx.get(f"{server.url}/webhooks", params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"state_webhook_url": "ftp://hooks.example/"}, "state_webhook_url"),
        ({"state_webhook_url": "hooks.example"}, "state_webhook_url"),
        ({"state_webhook_url": "https://user:password@hooks.example/"}, "state_webhook_url"),
        ({"state_webhook_url": "http://10.1.2.3/"}, "state_webhook_url"),
        ({"state_webhook_url": "http://169.254.169.254/latest"}, "state_webhook_url"),
        ({"state_webhook_url": "http://[::ffff:10.0.0.1]/"}, "state_webhook_url"),
        ({"webhook_secret": "hunter2"}, "webhook_secret"),
        ({"webhook_secret": "whsec_AAAA"}, "webhook_secret"),
        ({"webhook_secret": "whsec_!!!!"}, "webhook_secret"),
        ({"webhook_events": ["finished"]}, "webhook_events"),
        ({"webhook_events": ["done", "job.done"]}, "webhook_events"),
        ({"webhook_events": ["DONE"]}, "webhook_events"),
    ],
)
def test_what_cannot_work_is_refused_at_submit_with_the_field_named(
    server: Server, fields: dict[str, Any], field: str
) -> None:
    whole = {"kind": "noop", "state_webhook_url": "http://127.0.0.1:9/", **fields}
    answer = httpx.post(f"{server.url}/jobs", json=whole)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field
    assert "hunter2" not in answer.text
    assert "password" not in answer.text
    batch = httpx.post(f"{server.url}/jobs/batch", json={"jobs": [{"kind": "noop"}, whole]})
    assert batch.status_code == 422
    assert batch.json()["index"] == 1
    assert batch.json()["errors"][0]["field"] == field


def test_every_kind_of_event_can_be_asked_for(server: Server) -> None:
    names = [*RESERVED_EVENT_TYPES, "review.asked"]
    assert len(names) == 16
    answer = httpx.post(
        f"{server.url}/jobs",
        json={"kind": "mine", "state_webhook_url": "http://127.0.0.1:9/", "webhook_events": names},
    )
    assert answer.status_code == 202, answer.text


def test_a_name_that_resolves_to_a_refused_address_is_refused_at_submit(make_server: MakeServer) -> None:
    closed = make_server()
    answer = httpx.post(
        f"{closed.url}/jobs", json={"kind": "noop", "state_webhook_url": "http://localhost:1/"}
    )
    assert answer.status_code == 422
    assert "loopback" in answer.json()["detail"]
    secret = {"kind": "noop", "state_webhook_url": "https://hooks.invalid/", "webhook_secret": SECRET}
    answer = httpx.post(f"{closed.url}/jobs", json=secret)
    assert answer.status_code == 422
    assert "FOREMAN_SECRET_KEY" in answer.json()["detail"]
    assert SECRET not in answer.text
    # A name that nobody can resolve now may be there later.
    answer = httpx.post(
        f"{closed.url}/jobs", json={"kind": "noop", "state_webhook_url": "https://hooks.invalid/"}
    )
    assert answer.status_code == 202


def test_a_secret_stands_nowhere_in_clear(server: Server, receiver: ReceiverProcess) -> None:
    job_id = submit(server, state_webhook_url=receiver.url, webhook_secret=SECRET)
    wait_until(lambda: all_over(server, job_id))
    for path in (f"/jobs/{job_id}", "/jobs", "/webhooks", f"/jobs/{job_id}/webhooks"):
        assert SECRET not in httpx.get(server.url + path).text
    assert SECRET not in server.log()
    stored = query(server, "SELECT webhook_secret FROM jobs WHERE id = $1", job_id)
    assert isinstance(stored, bytes)
    assert SECRET.encode() not in stored


def query(server: Server, statement: str, *arguments: object) -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(server.database_url)
        try:
            return await connection.fetchval(statement, *arguments)
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_deleting_a_job_deletes_its_deliveries(server: Server, receiver: ReceiverProcess) -> None:
    job_id = submit(server, state_webhook_url=receiver.url)
    wait_until(lambda: all_over(server, job_id))
    assert httpx.delete(f"{server.url}/jobs/{job_id}").status_code == 204
    for table in ("outbox", "deliveries"):
        assert query(server, f"SELECT count(*) FROM {table} WHERE job_id = $1", job_id) == 0


def test_tries_and_latencies_are_in_the_metrics(server: Server, receiver: ReceiverProcess) -> None:
    job_id = submit(server, state_webhook_url=receiver.url)
    wait_until(lambda: all_over(server, job_id))
    text = httpx.get(f"{server.url}/metrics").text
    assert 'foreman_webhook_tries_total{outcome="delivered"}' in text
    assert "foreman_webhook_seconds_bucket" in text
    assert "foreman_webhook_open_circuits" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FOREMAN_OUTBOUND_ALLOW", "10.0.0.0/99"),
        ("FOREMAN_SECRET_KEY", "short"),
        ("FOREMAN_WEBHOOK_SECRET", "hunter2"),
    ],
)
def test_a_setting_that_cannot_be_used_is_said_at_start(name: str, value: str) -> None:
    environment = {key: each for key, each in os.environ.items() if not key.startswith("FOREMAN_")}
    ended = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--port", "0"],
        env={**environment, "FOREMAN_DATABASE_URL": "postgresql://127.0.0.1:1/none", name: value},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert name in ended.stderr
    assert "hunter2" not in ended.stderr


@pytest.mark.parametrize("flag", ["--secret-key", "--webhook-secret"])
def test_secrets_cannot_be_given_as_flags(flag: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "app", "serve", flag, "x"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
