"""The OpenAPI document, fuzzed against a real server: never a 5xx, every answer as described."""

import json
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.embedded import EmbeddedPostgres
from tests.conftest import ROOT, Server
from tests.serving import serving

EXAMPLES = 12
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
# A generated wait would be waited for.
WAITS = {"wait", "Prefer", "wait_seconds"}


def described() -> dict[str, Any]:
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text())
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["parameters"] = [
                each for each in operation.get("parameters", ()) if each["name"] not in WAITS
            ]
    return dict(document)


schema = schemathesis.openapi.from_dict(described())


@pytest.fixture(scope="module")
def fuzzed(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        postgres,
        tmp_path_factory.mktemp("fuzzed"),
        FOREMAN_REQUEST_TIMEOUT_SECONDS="5",
        FOREMAN_SHUTDOWN_GRACE_SECONDS="1",
    ) as server:
        yield server
        assert "request.failed" not in server.log()


@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_generated_request_is_a_server_error(case: "schemathesis.Case[Any]", fuzzed: Server) -> None:
    if isinstance(case.body, dict):
        case.body.pop("wait_seconds", None)
    case.call_and_validate(base_url=fuzzed.url, checks=CHECKS, timeout=20)
