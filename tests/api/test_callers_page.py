"""The page for callers names every field, state and error code that there is, and its examples work."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app import errors
from app.jobs.states import State
from app.jobs.submission import EXTENSION_FIELDS
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "callers.md").read_text()


def codes_of(error: type[errors.ForemanError]) -> set[str]:
    return {error.code}.union(*(codes_of(each) for each in error.__subclasses__()))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("field", {*EXTENSION_FIELDS, "payload"}),
        ("state", {str(state) for state in State}),
        ("code", codes_of(errors.ForemanError) - {"internal_error"}),
    ],
)
def test_every_name_that_a_caller_can_meet_is_on_the_page(kind: str, names: set[str]) -> None:
    missing = sorted(name for name in names if f"`{name}`" not in PAGE)
    assert missing == [], f"not every {kind} is explained in docs/callers.md"


def test_the_first_example_does_what_the_page_shows(client: httpx.Client) -> None:
    commands = re.findall(r"^\$ curl -s (\S+) -d '(.+)'$", PAGE, re.MULTILINE)
    assert commands
    for address, body in commands:
        path = address.removeprefix("localhost:8080")
        answer = client.post(path, content=body)
        assert answer.status_code == 202
        job = client.get(f"/jobs/{answer.json()['job_id']}", params={"wait": 10}).json()
        assert (job["state"], job["result"]["message"]["content"]) == ("done", "Hello!")


def test_the_json_example_is_accepted(client: httpx.Client, read: Callable[..., dict[str, Any]]) -> None:
    [body] = re.findall(r"```json\n(.+?)\n```", PAGE, re.DOTALL)
    answer = client.post("/jobs", content=body)
    assert answer.status_code == 202
    assert read(answer.json()["job_id"])["queue"] == "reports"


def test_links_to_other_pages_lead_somewhere() -> None:
    for page in ("callers.md", "operators.md"):
        text = (ROOT / "docs" / page).read_text()
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
            assert (ROOT / "docs" / target).exists(), f"{page}: {target}"
