"""Job data is other people's: no command hands a terminal what would move its cursor, set its title or worse."""

import json
import re

import httpx
import pytest

from app.cli.output import plain
from tests.cli.conftest import Foreman
from tests.conftest import Server

# Clears the screen, sets the title, the same in one character, rings, overwrites the line, turns text around.
NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\x7f\rover\u202ereversed"
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def test_control_characters_are_shown_as_what_could_not_be_shown() -> None:
    assert plain("a\tb\r\nc\nd") == "a\tb\nc\nd"
    assert plain("\x1b[31mred") == "\ufffd[31mred"
    assert plain("grüß dich 👩‍👧 שלום") == "grüß dich 👩‍👧 שלום"
    assert not HARMFUL.search(plain(NASTY))


@pytest.fixture(scope="module")
def nasty_job(shared_server: Server) -> str:
    """A job whose every text is one that a terminal must not be given."""
    with httpx.Client(base_url=shared_server.url, timeout=30) as client:
        body = {
            "kind": "nasty",
            "queue": "nasty",
            "metadata": {NASTY.replace("\x00", ""): NASTY},
            "max_attempts": 1,
        }
        job_id = client.post("/jobs", json=body).json()["job_id"]
        claim = {
            "worker": NASTY,
            "queues": ["nasty"],
            "kinds": ["nasty"],
            "wait_seconds": 10,
            "version": NASTY,
        }
        [job] = client.post("/claims", json=claim).json()["jobs"]
        token = {"lease_token": job["lease_token"]}
        for verb, more in (
            ("progress", {"message": NASTY, "step": NASTY, "fraction": 0.5}),
            ("logs", {"entries": [{"message": NASTY, "at": NASTY}]}),
            ("fail", {"error": {"code": NASTY, "message": NASTY}}),
        ):
            answer = client.post(f"/jobs/{job_id}/{verb}", json={**token, **more})
            assert answer.status_code == 200, answer.text
    return str(job_id)


@pytest.mark.parametrize(
    "command",
    [
        ["get", "JOB"],
        ["list", "--queue", "nasty"],
        ["events", "JOB"],
        ["logs", "JOB"],
        ["watch", "JOB"],
        ["wait", "JOB"],
        ["dead"],
        ["workers"],
        ["queues"],
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_command_passes_them_on(
    foreman: Foreman, nasty_job: str, command: list[str], as_json: bool
) -> None:
    arguments = [nasty_job if each == "JOB" else each for each in command] + (["--json"] if as_json else [])
    outcome = foreman(*arguments)
    assert not HARMFUL.search(outcome.out), repr(outcome.out)
    assert not HARMFUL.search(outcome.err), repr(outcome.err)
    if as_json and command[0] == "get":
        # For programs it is all there.
        assert outcome.json()["error"]["message"] == NASTY
        assert json.loads(outcome.out)["worker"] == NASTY


def test_nor_does_the_stream_of_a_models_words(foreman: Foreman) -> None:
    for how in ("--wait", "--follow"):
        outcome = foreman("submit", "--model", "echo", how, f"one {NASTY} two\nthree")
        assert outcome.code == 0
        assert outcome.out.startswith("one ")
        assert outcome.out.endswith("two\nthree\n")
        assert not HARMFUL.search(outcome.out + outcome.err), repr(outcome.out)
