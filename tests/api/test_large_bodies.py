"""Large bodies on every route: parsed where they hold nobody up, and nothing is kept of what is too many."""

import json
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.errors import InvalidRequest
from app.jobs.shapes import COUNTED_BYTES, parse_batch
from tests.api.test_limits import bytes_in_flight
from tests.conftest import Server
from tests.serving import serving

# Deep nesting is what makes a body slow.
NESTED = b"[" + (b"[" * 60 + b"]" * 60 + b",") * 60_000 + b"0]"


@pytest.fixture(scope="module")
def shared_server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("large")) as server:
        yield server


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/schedules/large", b'{"cron":"0 0 1 1 *","job":{"kind":"own-kind","payload":{"a":%b}}}'),
        ("POST", "/claims", b'{"worker":"w","queues":%b}'),
        ("POST", "/jobs/{job_id}/cancel", b'{"unknown":%b}'),
        ("POST", "/jobs/{job_id}/events", b'{"type":"note","payload":%b}'),
        ("POST", "/jobs/{job_id}/heartbeat", b'{"lease_token":%b}'),
        ("POST", "/settlements", b'{"settlements":[{"job_id":"x","verb":"complete","result":%b}]}'),
        ("POST", "/bulk-operations", b'{"action":"cancel","filter":%b}'),
        ("POST", "/dead-letters/replay", b'{"filter":%b}'),
        ("PUT", "/targets/large", b'{"url":%b}'),
        ("POST", "/v1/chat/completions", b'{"model":"none","messages":[{}],"stream_options":{"x":%b}}'),
        ("POST", "/api/chat", b'{"model":"none","messages":[{"content":%b}]}'),
    ],
)
def test_others_are_answered_while_it_is_parsed(
    shared_server: Server, method: str, path: str, body: bytes
) -> None:
    job = httpx.post(f"{shared_server.url}/jobs", json={"kind": "nobodys-kind"}).json()
    url = shared_server.url + path.format_map(job)
    content = body % NESTED
    seen, tries = 0, 0
    with ThreadPoolExecutor(1) as pool:
        # A stalled machine may let us ask too late, time and again; a loop that stands still answers never.
        while not seen and tries < 10:
            tries += 1
            sending = pool.submit(httpx.request, method, url, content=content, timeout=100)
            while not sending.done():
                # Whoever is told that all of it has come asks between its last byte and its answer.
                seen += bytes_in_flight(shared_server) >= len(content)
            assert sending.result().status_code < 500
    assert seen > 0
    httpx.delete(f"{shared_server.url}/schedules/large")


@pytest.mark.parametrize("path", ["/jobs/batch", "/settlements"])
def test_of_far_too_many_entries_none_is_kept(shared_server: Server, path: str) -> None:
    name = "jobs" if path == "/jobs/batch" else "settlements"
    numbers = httpx.post(f"{shared_server.url}{path}", json={name: [1] * COUNTED_BYTES}, timeout=60)
    assert (numbers.status_code, numbers.json()["index"]) == (422, 0)
    empty = httpx.post(f"{shared_server.url}{path}", json={name: [{}] * COUNTED_BYTES}, timeout=60)
    assert empty.status_code == 422
    assert "must have 1 to 1000 entries" in empty.json()["detail"]
    text = httpx.post(f"{shared_server.url}{path}", json={name: "x" * COUNTED_BYTES * 2}, timeout=60)
    assert "must be an array" in text.json()["detail"]


@pytest.mark.parametrize("entry", [1, {}])
def test_they_take_no_more_room_than_a_few_times_the_body(entry: object) -> None:
    body = json.dumps({"jobs": [entry] * 1_500_000}, separators=(",", ":")).encode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            parse_batch(body, "jobs", lambda text: text, most=1000, max_depth=64)
        assert tracemalloc.get_traced_memory()[1] < 15 * len(body)
    finally:
        tracemalloc.stop()


def test_a_large_batch_of_few_is_taken(shared_server: Server) -> None:
    jobs: list[dict[str, Any]] = [
        {"kind": "nobodys-kind", "payload": {"text": "x" * 20_000}} for _ in range(100)
    ]
    taken = httpx.post(f"{shared_server.url}/jobs/batch", json={"jobs": jobs}, timeout=60)
    assert (taken.status_code, len(taken.json()["jobs"])) == (202, 100)
    jobs[70] = {"kind": 5, "payload": {"text": "x"}}
    refused = httpx.post(f"{shared_server.url}/jobs/batch", json={"jobs": jobs}, timeout=60)
    assert (refused.status_code, refused.json()["index"]) == (422, 70)
