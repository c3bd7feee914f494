"""Every value of every route, each in its turn replaced by something absurd: never a server error, and whatever was
taken harms nobody else. Generated requests rarely hit the one number that breaks; here each place gets each of them.
"""

import asyncio
import copy
import itertools
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import ROOT, Server
from tests.serving import serving

NUMBERS = [
    "1e-320",
    "1e308",
    "-0.0",
    "9223372036854775808",
    "18446744073709551616",
    "1" + "0" * 30,
    "-1",
    "true",
    '"1"',
]
TEXTS = [
    '"a\\u0000b"',
    '"' + "x" * 70_000 + '"',
    '"9999-12-31T23:59:59-14:00"',
    '"0001-01-01T00:00:00+14:00"',
    "18446744073709551616",
]
SHAPES = ["[]", "{}", '{"\\u0000":"\\u0000"}', "[" + "9" * 400 + "]", "1e308"]
IN_URLS = ["%00", "a%00b", "%FF", "9" * 40, "1e308", "-1"]
IN_HEADERS = ["9" * 40, "1e308", "-1", "\x80\xff", '"', "bytes=9" + "9" * 40 + "-"]

A_JOB = {
    "kind": "http",
    "queue": "absurd",
    "priority": 1,
    "run_at": "2020-01-01T00:00:00Z",
    "deadline_seconds": 60,
    "max_duration_seconds": 60,
    "max_attempts": 1,
    "backoff_seconds": [1],
    "parent_id": None,
    "state_webhook_url": "http://127.0.0.1:9/hook",
    "webhook_events": ["done"],
    "webhook_secret": None,
    "metadata": {"k": "v"},
    "target": "t",
    "depends_on": [],
    "on_dependency_failure": None,
    "payload": {
        "method": "GET",
        "url": "http://127.0.0.1:9/",
        "headers": {"x": "y"},
        "body": None,
        "timeout_seconds": 1,
        "success": [200],
    },
}
# The pair of each of these excludes the other one.
ANOTHER_JOB = {
    "kind": "noop",
    "queue": "absurd",
    "delay_seconds": 1,
    "deadline": "2090-01-01T00:00:00Z",
    "payload": {},
}
A_CHAT = {
    "model": "echo",
    "queue": "absurd",
    "messages": [{"role": "user", "content": "hi"}],
    "options": {"num_ctx": 1, "temperature": 0.1, "use_mmap": True},
    "keep_alive": 1,
}
A_QUEUE = {
    "max_depth": 1000,
    "max_running": 10,
    "rate": {"limit": 10, "per_seconds": 1, "burst": 1},
    "fair_by": "k",
    "max_attempts": 3,
    "backoff_seconds": [1],
    "lease_seconds": 10,
    "retention": {"done": 600},
    "payload_schema": {
        "properties": {"a": {"maximum": 1, "minLength": 1, "multipleOf": 1, "enum": [1], "const": 1}}
    },
    "key": ["a", "/a"],
    "max_active": 1,
    "max_queued": 1,
    "when_full": "reject",
    "stale_policy": "block",
}
A_FILTER = {
    "state": ["failed"],
    "queue": "absurd",
    "kind": "k",
    "model": "m",
    "since": "2020-01-01T00:00:00Z",
    "until": "2030-01-01T00:00:00Z",
    "metadata": {"k": "v"},
}
A_PASSTHROUGH = {
    "model": "echo",
    "stream": False,
    "options": {"num_ctx": 1, "seed": 1},
    "max_tokens": 1,
    "n": 1,
}
A_MESSAGES_CALL: dict[str, Any] = {
    "model": "echo",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {"n": 1}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "is_error": True}]},
    ],
    "tools": [{"name": "look", "description": "hi", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 1},
    "temperature": 1,
    "top_k": 1,
    "stop_sequences": ["hi"],
    "stream": False,
}
TOKEN = {"lease_token": "…"}
SETTLING: dict[str, dict[str, Any]] = {
    "start": TOKEN,
    "heartbeat": {**TOKEN, "lease_seconds": 10},
    "progress": {**TOKEN, "step": "s", "message": "m", "current": 1, "total": 2, "fraction": 0.5},
    "logs": {**TOKEN, "entries": [{"level": "info", "message": "m", "at": "2020-01-01T00:00:00Z"}]},
    "complete": {
        **TOKEN,
        "result": {"a": 1},
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 1,
            "load_seconds": 1,
            "prefill_seconds": 1,
            "decode_seconds": 1,
            "more": 1,
        },
    },
    "fail": {**TOKEN, "error": {"code": "c", "message": "m"}, "retryable": True, "retry_in_seconds": 1},
    "release": {**TOKEN, "delay_seconds": 1, "reason": "r"},
    "defer": {**TOKEN, "delay_seconds": 1, "reason": "r"},
}
BODIES: dict[str, list[dict[str, Any]]] = {
    "POST /jobs": [A_JOB, ANOTHER_JOB, A_CHAT],
    "POST /jobs/batch": [{"jobs": [ANOTHER_JOB]}],
    "POST /jobs/{job_id}/cancel": [{"reason": "r"}],
    "POST /webhooks/redeliver": [{"host": "nobody.example", "state": "given_up", "dry_run": True}],
    "POST /claims": [
        {
            "worker": "w",
            "queues": ["absurd"],
            "kinds": ["k"],
            "limit": 1,
            "lease_seconds": 1,
            "wait_seconds": 0,
            "concurrency": 1,
            "version": "1",
        }
    ],
    **{f"POST /jobs/{{job_id}}/{verb}": [body] for verb, body in SETTLING.items()},
    "POST /settlements": [
        {"settlements": [{"job_id": "…", "verb": verb, **body}]}
        for verb, body in SETTLING.items()
        if verb in {"complete", "fail", "heartbeat"}
    ],
    "POST /jobs/{job_id}/events": [{"type": "my.type", "payload": {"a": 1}}],
    "PUT /targets/{name}": [
        {
            "url": "http://127.0.0.1:9",
            "dialect": "openai",
            "slots": 1,
            "tags": ["t"],
            "token": None,
            "wake": {
                "mac": "00:11:22:33:44:55",
                "address": "127.0.0.1",
                "port": 9,
                "url": None,
                "method": "GET",
            },
        },
        {"url": "http://127.0.0.1:9", "wake": {"url": "http://127.0.0.1:9", "method": "PUT"}},
    ],
    "POST /api/chat": [{**A_PASSTHROUGH, "messages": [{"role": "user", "content": "hi"}], "keep_alive": 1}],
    "POST /api/generate": [{**A_PASSTHROUGH, "prompt": "hi"}],
    "POST /api/embed": [{**A_PASSTHROUGH, "input": ["hi"]}],
    "POST /api/embeddings": [{**A_PASSTHROUGH, "prompt": "hi"}],
    "POST /api/show": [{"model": "echo", "name": "echo", "verbose": True}],
    "POST /v1/chat/completions": [
        {
            **A_PASSTHROUGH,
            "messages": [{"role": "user", "content": "hi"}],
            "stream_options": {"include_usage": True},
        }
    ],
    "POST /v1/messages": [A_MESSAGES_CALL],
    "POST /v1/messages/count_tokens": [
        {name: A_MESSAGES_CALL[name] for name in ("model", "messages", "system", "tools", "tool_choice")}
    ],
    "POST /v1/completions": [{**A_PASSTHROUGH, "prompt": "hi"}],
    "POST /v1/embeddings": [{**A_PASSTHROUGH, "input": ["hi"]}],
    "POST /v1/batches": [
        {
            "input_file_id": "file-01HZZZZZZZZZZZZZZZZZZZZZZZ",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        }
    ],
    "POST /v1/responses": [
        {
            "model": "echo",
            "stream": False,
            "options": {"num_ctx": 1, "seed": 1},
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "hi"},
            ],
        },
        {"model": "echo", "input": "hi", "previous_response_id": "resp_01ARZ3NDEKTSV4RRFFQ69G5FAV"},
        {
            "model": "echo",
            "input": "hi",
            "background": True,
            "store": True,
            "metadata": {"a": "b"},
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "medium"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["message.output_text.logprobs"],
            "max_output_tokens": 5,
            "temperature": 1,
            "top_p": 1,
            "top_logprobs": 1,
            "stop": ["x"],
            "seed": 1,
        },
    ],
    "PUT /queues/{name}": [A_QUEUE],
    "POST /dead-letters/replay": [{"filter": A_FILTER, "dry_run": False}],
    "POST /dead-letters/dismiss": [{"filter": A_FILTER, "dry_run": True}],
    "POST /bulk-operations": [{"action": "dismiss", "filter": A_FILTER, "dry_run": False}],
    "POST /keys": [
        {
            "name": "absurd",
            "tenant": "absurd",
            "scopes": ["jobs:read"],
            "expires_in_seconds": 60,
            "limits": {
                "requests_per_second": 1,
                "requests": 1,
                "connections": 1,
                "streams": 1,
                "long_polls": 1,
                "body_bytes": 1024,
                "jobs": 1,
            },
        }
    ],
    "PUT /schedules/{name}": [{"cron": "0 0 1 1 *", "timezone": "Europe/Berlin", "job": ANOTHER_JOB}],
}


def operations() -> list[tuple[str, dict[str, Any]]]:
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text())
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_that_takes_json_has_a_body_to_spoil() -> None:
    taking = {
        name
        for name, each in operations()
        if "application/json" in each.get("requestBody", {}).get("content", {})
    }
    assert taking == set(BODIES)


def spoils(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Each place in a body, with each thing to put there in place of what it is."""
    if path:
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        instead = NUMBERS if numeric else SHAPES if isinstance(value, dict | list | bool | None) else TEXTS
        yield from ((path, each) for each in instead)
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from spoils(each, (*path, key))


def spoiled(body: dict[str, Any], path: tuple[Any, ...], value: str) -> bytes:
    changed: Any = copy.deepcopy(body)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = "<here>"
    return json.dumps(changed, ensure_ascii=False).replace('"<here>"', value).encode()


class Attack:
    """Sends each spoiled request and keeps those that were answered with a server error."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._at_once = asyncio.Semaphore(8)
        self.sent = 0
        self.failed: list[str] = []
        self._leases: list[dict[str, str]] = []
        self._ended = ""

    async def prepare(self, leases: int) -> None:
        """Jobs to settle, each for one request; and one that has ended."""
        for _ in range(0, leases, 500):
            jobs = [{"kind": "mine", "queue": "leased", "payload": {}}] * 500
            (await self._client.post("/jobs/batch", json={"jobs": jobs})).raise_for_status()
            claim = {
                "worker": "w",
                "queues": ["leased"],
                "kinds": ["mine"],
                "limit": 500,
                "lease_seconds": 600,
            }
            self._leases += (await self._client.post("/claims", json=claim)).json()["jobs"]
        assert len(self._leases) >= leases
        done = await self._client.post("/jobs", json={"kind": "noop"}, headers={"prefer": "wait=60"})
        self._ended = done.json()["job_id"]

    async def send(self, name: str, url: str, headers: dict[str, str], content: bytes | None) -> None:
        method = name.partition(" ")[0]
        async with self._at_once:
            self.sent += 1
            given = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
            try:
                answer = await self._client.request(method, url, headers=given, content=content)
            except httpx.TransportError as problem:
                self.failed.append(f"{name} {url[-80:]} {headers} {(content or b'')[:200]!r}: {problem!r}")
                return
            if answer.status_code >= 500:
                self.failed.append(
                    f"{name} {url[-80:]} {headers} {(content or b'')[:200]!r}: {answer.text[:200]}"
                )
        if name == "PUT /targets/{name}" and answer.status_code < 300:
            # One that is configured would take the place of the built-in one.
            await self._client.delete(url)

    def requests(
        self, name: str, operation: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, str], bytes | None]]:
        path = name.partition(" ")[2]
        parameters = operation.get("parameters", ())
        bodies = BODIES.get(name, [])
        plain = json.dumps(bodies[0]).encode() if bodies else None
        quick = {"x-foreman-deadline-seconds": "5"} if path.startswith(("/api", "/v1")) else {}
        for each in parameters:
            if each["in"] == "path":
                for value in IN_URLS:
                    yield self._path(path, {each["name"]: value}), quick, plain
            elif each["in"] == "query":
                for value in IN_URLS:
                    yield f"{self._path(path)}?{each['name']}={value}", quick, plain
            elif each["name"] != "X-Foreman-Deadline-Seconds":
                for value in IN_HEADERS:
                    yield self._path(path), {**quick, each["name"].lower(): value}, plain
        if path == "/jobs":
            yield from ((f"{path}?metadata.{key}={key}", {}, plain) for key in IN_URLS)
        for body in bodies:
            for place, value in spoils(body):
                content = spoiled(body, place, value)
                if b"\xe2\x80\xa6" not in content:
                    yield self._path(path), quick, content
                    continue
                lease = self._leases.pop()
                content = content.replace(
                    b'"lease_token": "\xe2\x80\xa6"', f'"lease_token":"{lease["lease_token"]}"'.encode()
                )
                content = content.replace(b'"\xe2\x80\xa6"', f'"{lease["job_id"]}"'.encode())
                yield self._path(path, {"job_id": lease["job_id"]}), quick, content

    def _path(self, path: str, values: dict[str, str] | None = None) -> str:
        own = {"job_id": self._ended, "name": f"a-{uuid.uuid4().hex[:8]}", "key": "k", "model": "echo"}
        own |= {"delivery_id": "1", "operation_id": self._ended, "response_id": f"resp_{self._ended}"}
        own |= values or {}
        return path.format(**own)


@pytest.fixture(scope="module")
def attacked(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("attacked")
    with serving(postgres, folder, FOREMAN_SHUTDOWN_GRACE_SECONDS="1", FOREMAN_SWEEP_SECONDS="0.2") as server:
        yield server


async def test_no_absurd_value_anywhere_is_a_server_error_or_stops_the_work_of_others(
    attacked: Server,
) -> None:
    async with httpx.AsyncClient(base_url=attacked.url, timeout=60) as client:
        attack = Attack(client)
        await attack.prepare(500)
        for name, operation in operations():
            if name not in ("GET /metrics", "GET /events"):
                sending = (attack.send(name, *each) for each in attack.requests(name, operation))
                while chunk := list(itertools.islice(sending, 200)):
                    await asyncio.gather(*chunk)
        assert not attack.failed, "\n".join(attack.failed)
        # Whatever was taken of all this: the rest of the services goes on.
        for queue in ("default", "absurd-no-more"):
            body = {"kind": "noop", "queue": queue}
            done = await client.post("/jobs", json=body, headers={"prefer": "wait=60"})
            assert done.json()["state"] == "done", done.text
        for path in (
            "/queues",
            "/usage",
            "/targets",
            "/schedules",
            "/workers",
            "/jobs",
            "/bulk-operations",
            "/metrics",
        ):
            answer = await client.get(path)
            assert answer.status_code == 200, (path, answer.text)
    log = attacked.log()
    assert [
        line[:2000] for line in log.splitlines() if "request.failed" in line or "loop.failed" in line
    ] == []
