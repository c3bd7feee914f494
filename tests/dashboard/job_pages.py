"""A visitor of the pages about jobs, and a worker that gives them something to show."""

import contextlib
import html
import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.identity.scopes import ALL_SCOPES
from tests.conftest import Server
from tests.serving import serving
from tests.sharing import FolderShare

QUICK = {
    "FOREMAN_AUTH": "on",
    "FOREMAN_POLL_SECONDS": "0.2",
    "FOREMAN_SWEEP_SECONDS": "0.2",
    "FOREMAN_CANCEL_GRACE_SECONDS": "0.5",
    "FOREMAN_SHUTDOWN_GRACE_SECONDS": "1",
    "FOREMAN_OUTBOUND_ALLOW": "127.0.0.1",
}


def shared_server(share: FolderShare, postgres: EmbeddedPostgres, folders: pytest.TempPathFactory) -> Server:
    """One for all tests of these pages; each has a tenant of its own."""
    return share.get("job pages", lambda: serving(postgres, folders.mktemp("pages"), **QUICK))


def new_tenant() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


class Visitor:
    """Somebody with a key and a browser without script."""

    def __init__(self, server: Server, tenant: str, scopes: tuple[str, ...]) -> None:
        self.server = server
        self.tenant = tenant
        bearer = {"Authorization": f"Bearer {server.key(tenant, *scopes)}"}
        self.http = httpx.Client(base_url=server.url, headers=bearer, timeout=60)
        self._others = contextlib.ExitStack()
        self._others.enter_context(self.http)

    def other(self, *scopes: str, tenant: str = "") -> "Visitor":
        """Somebody else with these scopes: of the same tenant, if no other is named."""
        found = Visitor(self.server, tenant or self.tenant, scopes)
        self._others.callback(found.close)
        return found

    def stranger(self) -> "Visitor":
        """Somebody of another tenant, who may do everything."""
        return self.other(*ALL_SCOPES, tenant=new_tenant())

    def close(self) -> None:
        self._others.close()

    def open(self, path: str, status: int = 200, **more: Any) -> str:
        answer = self.http.get(path, **more)
        assert answer.status_code == status, (answer.status_code, answer.headers.get("location"), answer.text)
        return answer.text

    def send(self, path: str, fields: Any, page: str) -> httpx.Response:
        """A form of this page, with the token that it has."""
        pairs = list(fields.items()) if isinstance(fields, dict) else list(fields)
        return self.http.post(path, data=_form([("csrf", csrf_of(page)), *pairs]))

    def follow(self, answer: httpx.Response) -> str:
        assert answer.status_code == 303, answer.text
        return self.open(answer.headers["location"])

    # -- what a program does --

    def submit(self, **fields: Any) -> str:
        answer = self.http.post("/jobs", json={"kind": "work", **fields})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    def claim(self, number: int = 1, queue: str = "default", worker: str = "w") -> list[dict[str, Any]]:
        body = {"worker": worker, "queues": [queue], "kinds": ["work"], "limit": number}
        claimed: list[dict[str, Any]] = self.http.post("/claims", json=body).json()["jobs"]
        assert len(claimed) == number
        return claimed

    def fail(
        self, number: int = 1, code: str = "broken", message: str = "It broke.", **fields: Any
    ) -> list[str]:
        """So many dead letters."""
        for _ in range(number):
            self.submit(**fields)
        jobs = self.claim(number, fields.get("queue", "default"))
        for job in jobs:
            body = {
                "lease_token": job["lease_token"],
                "error": {"code": code, "message": message},
                "retryable": False,
            }
            assert self.http.post(f"/jobs/{job['job_id']}/fail", json=body).status_code == 200
        return [str(job["job_id"]) for job in jobs]

    def state(self, job_id: str) -> str:
        return str(self.http.get(f"/jobs/{job_id}").json().get("state", "gone"))


def _form(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def csrf_of(page: str) -> str:
    found = re.search(r'data-csrf="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


def rows(page: str) -> list[str]:
    """The ids of the jobs that are listed, in their order."""
    return re.findall(r'<tr id="job-(\w{26})"', page)


def links(page: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(r'href="([^"]*)"', page)]


def hidden(page: str, action: str) -> list[tuple[str, str]]:
    """The hidden fields of the form that is sent there, without its token."""
    [form] = re.findall(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', page, flags=re.DOTALL)
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
    return [(html.unescape(name), html.unescape(value)) for name, value in found if name != "csrf"]


@contextlib.contextmanager
def visiting(server: Server) -> Iterator[Visitor]:
    """Somebody of a tenant that no other test uses, who may do everything."""
    visitor = Visitor(server, new_tenant(), ALL_SCOPES)
    try:
        yield visitor
    finally:
        visitor.close()
