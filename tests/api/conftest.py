"""One server for all black-box tests of this process; each test looks at jobs, queues and keys of its own."""

import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.serving import serving
from tests.sharing import FolderShare


@pytest.fixture
def api(share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Server:
    quick = {
        "FOREMAN_SWEEP_SECONDS": "0.2",
        "FOREMAN_POLL_SECONDS": "0.2",
        "FOREMAN_CANCEL_GRACE_SECONDS": "1",
        "FOREMAN_SHUTDOWN_GRACE_SECONDS": "1",
    }
    return share.get("api", lambda: serving(postgres, tmp_path_factory.mktemp("api"), **quick))


@pytest.fixture
def client(share: FolderShare, api: Server) -> httpx.Client:
    return share.get("client", lambda: httpx.Client(base_url=api.url, timeout=150))


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"q-{uuid.uuid4().hex[:12]}"


Submit = Callable[..., str]


@pytest.fixture
def submit(client: httpx.Client, queue: str) -> Submit:
    """Submit a job to this test's queue; its id."""

    def submit(headers: dict[str, str] | None = None, **fields: Any) -> str:
        body = {"kind": "noop", "queue": queue, **fields}
        answer = client.post("/jobs", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    return submit


@pytest.fixture
def read(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    """Read a job, waiting for its end when told to."""

    def read(job_id: str, wait: float = 0) -> dict[str, Any]:
        answer = client.get(f"/jobs/{job_id}", params={"wait": wait} if wait else None)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return read


@pytest.fixture
def reaches(read: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Wait until a job is in a state; the job."""

    def reaches(job_id: str, *states: str, seconds: float = 15) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def there() -> bool:
            nonlocal found
            found = read(job_id)
            return found["state"] in states

        wait_until(there, seconds, lambda: f"not {states} but {found}")
        return found

    return reaches


@pytest.fixture
def claimed(client: httpx.Client, queue: str, submit: Submit) -> Callable[..., dict[str, Any]]:
    """A job that a worker over HTTP holds: it never confirms a cancel by itself."""

    def claimed(**fields: Any) -> dict[str, Any]:
        kind = f"own-{uuid.uuid4().hex[:8]}"
        job_id = submit(kind=kind, **fields)
        answer = client.post(
            "/claims", json={"worker": "tester", "queues": [queue], "kinds": [kind], "lease_seconds": 60}
        )
        [job] = answer.json()["jobs"]
        assert job["job_id"] == job_id
        return dict(job)

    return claimed


def problem_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Every error is one shape."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    document = dict(answer.json())
    assert document["status"] == status
    assert document["code"] == code, document
    assert document["type"].endswith(code)
    assert document["title"]
    assert document["detail"]
    assert answer.headers["x-request-id"]
    return document
