"""The OpenAPI document, fuzzed with every check against a server that needs keys, by every kind of caller.

In the suite: all that the document's boundaries give (some 4000 requests) with a key that may do everything, and a few
drawn requests by each kind of caller, the same ones each time.

    FUZZ_CASES=20000 python -m pytest -n 0 tests/identity/test_fuzz_with_keys.py

draws that many on top, others each time, and prints how many were sent and what they were answered.
"""

import math
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import positive_data_acceptance, unsupported_method

from app.embedded import EmbeddedPostgres
from app.identity.key import new_key
from app.identity.scopes import ALL_SCOPES
from tests.api.test_fuzz import described
from tests.conftest import Server
from tests.patience import wait_until
from tests.serving import serving

SEARCHES = "FUZZ_CASES" in os.environ
CASES = int(os.environ.get("FUZZ_CASES", "500"))
# Of those who may do everything; the others share the rest.
SHARE_OF_ALL_SCOPES = 0.6
EVERYTHING = "every scope"
WRONG_KEY = "a wrong key"
NO_KEY = "no key"
NOT_A_KEY = "what is no key"
UNKNOWN = (WRONG_KEY, NOT_A_KEY, NO_KEY)
NARROW = [*map(str, ALL_SCOPES), *UNKNOWN]
# Of a claim.
MAX_WAIT_SECONDS = 60
Case = schemathesis.Case[Any]

# What a document cannot say is refused beyond what it says; it is then a 400 or 422, never anything else:
BEYOND_THE_DOCUMENT = (
    # cursors and watermarks, which are opaque, but ours; names of queues and types that are empty
    "GET /jobs",
    "GET /dead-letters",
    "GET /dead-letters/groups",
    "GET /events",
    "GET /jobs/{job_id}/events",
    "GET /keys",
    "GET /webhooks",
    "POST /webhooks/redeliver",
    # a NUL
    "GET /usage",
    # a lease token, which is missed only when all the rest is right
    "PUT /jobs/{job_id}/artifacts/{name}",
    # the stream of a job that has none
    "GET /jobs/{job_id}/stream",
    # fields that depend on each other; kinds with payloads of their own; addresses, time zones and cron; NUL; 5.0,
    # which a schema takes for an integer
    "POST /jobs",
    "POST /jobs/batch",
    "POST /jobs/{job_id}/complete",
    "POST /claims",
    "POST /settlements",
    "POST /keys",
    "POST /bulk-operations",
    "POST /dead-letters/replay",
    "POST /dead-letters/dismiss",
    "PUT /queues/{name}",
    "PUT /schedules/{name}",
    "PUT /targets/{name}",
)
# Bodies of these belong to the target and are described loosely; and all that is not a route there, a known path with
# another method included, is a 404 as those servers' clients know it, where we would otherwise say 405.
SURFACES = ("/api/", "/v1/")

schema = schemathesis.openapi.from_dict(described())
# Who calls is chosen here: a key that schemathesis drew would be replaced, and its case be another than it believes.
schema.config.generation.update(with_security_parameters=False)
# Those with something to draw: of the others there is but one case each.
OPERATIONS = sum(
    bool(operation["parameters"] or "requestBody" in operation)
    for methods in described()["paths"].values()
    for operation in methods.values()
)
FOR_ALL_SCOPES = math.ceil(CASES * SHARE_OF_ALL_SCOPES / OPERATIONS)
FOR_THE_OTHERS = math.ceil(CASES * (1 - SHARE_OF_ALL_SCOPES) / OPERATIONS)


def drawn(examples: int, *phases: Phase) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=not SEARCHES,
        database=None,
        phases=[*phases, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Fuzzed:
    server: Server
    keys: dict[str, str]
    # For what is put up before a case and cleared away after it; never the key that is fuzzed with.
    admin: httpx.Client
    session: requests.Session
    sent: Counter[str] = field(default_factory=Counter)

    def send(self, case: Case, caller: str) -> int:
        """One case by one caller, with all checks."""
        self._deepen(case)
        key = self.keys.get(caller)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        label = case.operation.label
        excluded: list[schemathesis.CheckFunction] = []
        if label in BEYOND_THE_DOCUMENT or case.operation.path.startswith(SURFACES):
            excluded.append(positive_data_acceptance)
        if case.operation.path.startswith(SURFACES):
            excluded.append(unsupported_method)
        response = case.call_and_validate(
            base_url=self.server.url,
            session=self.session,
            headers=headers,
            excluded_checks=excluded,
            timeout=60,
        )
        status = response.status_code
        meta = case.meta
        assert meta is not None
        if meta.generation.mode.is_positive and positive_data_acceptance in excluded:
            assert status < 400 or status in {400, 401, 403, 404, 409, 422}, f"{label}: {status}"
        self.sent.update(
            ["sent", f"by {caller}", f"{meta.phase.name.value}, {meta.generation.mode.value}", f"→ {status}"]
        )
        self._clear_away(case, status)
        return status

    def _deepen(self, case: Case) -> None:
        """What is drawn is the name of nothing: in about every other case it is made to be one of something."""
        assert case.meta is not None
        body = case.body
        if isinstance(body, dict) and _is_wait(body.get("wait_seconds")):
            body["wait_seconds"] = 0  # as valid as it was
        if any(map(case.meta.is_negative_at, (ParameterLocation.PATH, ParameterLocation.BODY))):
            return
        draw = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode())
        parameters = case.path_parameters
        if "job_id" in parameters:
            self._name_a_job(case, draw % 8)
        elif "key_id" in parameters and draw % 2:
            parameters["key_id"] = self.admin.post("/keys", json={"name": "doomed"}).json()["key_id"]
        elif "name" in parameters and draw % 2 and case.method == "GET":
            parameters["name"] = "known"
        if case.operation.path.startswith(SURFACES) and isinstance(body, dict) and draw % 2:
            if isinstance(body.get("model"), str):
                body["model"] = "echo"
            # An answer that comes too late for it is a 504, and rightly so.
            case.headers.pop("X-Foreman-Deadline-Seconds", None)

    def _name_a_job(self, case: Case, kind: int) -> None:
        if kind > 3:
            return
        if case.operation.path.endswith("/stream"):
            kind = 2  # one that has ended: of another one the stream would not end
        # Nobody else's: those of other cases are queued again once their leases have run out.
        running = f"running-{self.sent['sent']}"
        names = ("queued", running, "noop", running)
        job = {"kind": names[kind], "payload": {}}
        job_id = self.admin.post("/jobs", json=job).json()["job_id"]
        case.path_parameters["job_id"] = job_id
        if kind == 2:
            wait_until(lambda: self.admin.get(f"/jobs/{job_id}?wait=60").json()["state"] == "done")
            if case.operation.path.endswith("/events") and case.method == "GET":
                case.headers["Accept"] = "text/event-stream"
        elif names[kind] == running:
            with self.server.client(self.keys[EVERYTHING]) as worker:
                claimed = worker.post("/claims", json={"worker": "w", "kinds": [running], "limit": 1})
            token = {each["job_id"]: each["lease_token"] for each in claimed.json()["jobs"]}[job_id]
            if isinstance(case.body, dict) and isinstance(case.body.get("lease_token"), str):
                case.body["lease_token"] = token
            if "X-Foreman-Lease-Token" in case.headers:
                case.headers["X-Foreman-Lease-Token"] = token

    def _clear_away(self, case: Case, status: int) -> None:
        """What would make others wait: a target that is not there, a paused queue, a schedule of every second."""
        if status not in (200, 201):
            return
        label, path = case.operation.label, case.formatted_path
        if label in ("PUT /targets/{name}", "PUT /schedules/{name}"):
            assert self.admin.delete(path).status_code == 204, path
        elif label == "POST /queues/{name}/pause":
            assert self.admin.post(path.removesuffix("pause") + "resume").status_code == 200, path


def _is_wait(seconds: object) -> bool:
    return isinstance(seconds, (int, float)) and 0 <= seconds <= MAX_WAIT_SECONDS


@pytest.fixture(scope="module")
def fuzzed(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Fuzzed]:
    with serving(
        postgres,
        tmp_path_factory.mktemp("fuzzed"),
        FOREMAN_AUTH="on",
        FOREMAN_REQUEST_TIMEOUT_SECONDS="5",
        FOREMAN_SHUTDOWN_GRACE_SECONDS="1",
    ) as server:
        keys = {EVERYTHING: server.key("default", *ALL_SCOPES), WRONG_KEY: new_key(), NOT_A_KEY: "sk-proj-0"}
        keys |= {scope: server.key("default", scope) for scope in ALL_SCOPES}
        with server.client() as admin, requests.Session() as session:
            assert admin.put("/queues/known", json={}).status_code == 201
            fuzzed = Fuzzed(server, keys, admin, session)
            yield fuzzed
        assert "request.failed" not in server.log()
        if SEARCHES:
            with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                for what, number in sorted(fuzzed.sent.items()):
                    print(f"\n{number:7} {what}", end="")  # noqa: T201  # what the command is for


@schema.parametrize()
@drawn(FOR_ALL_SCOPES, Phase.explicit)
def test_who_may_do_everything_meets_what_the_document_says(case: Case, fuzzed: Fuzzed) -> None:
    assert fuzzed.send(case, EVERYTHING) not in (401, 403), "the key was not lost on the way"


@schema.parametrize()
@schema.given(caller=st.sampled_from(NARROW))
@drawn(FOR_THE_OTHERS)
def test_who_may_do_less_meets_what_the_document_says(case: Case, caller: str, fuzzed: Fuzzed) -> None:
    status = fuzzed.send(case, caller)
    asked = case.operation.definition.raw.get("security")
    if not asked:
        assert status not in (401, 403)
    elif caller in UNKNOWN:
        assert status == 401
    elif caller in asked[0]["key"]:
        assert status not in (401, 403)
    else:
        assert status == 403 or (status in (404, 405) and _may_miss_its_route(case))


def _may_miss_its_route(case: Case) -> bool:
    """A path that was drawn wrong, or that has a line feed, which the framework's routes do not match."""
    assert case.meta is not None
    return case.meta.is_negative_at(ParameterLocation.PATH) or "%0A" in case.formatted_path
