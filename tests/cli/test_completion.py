"""What the shell offers behind Tab."""

import os
import subprocess
import sys

import pytest

from app.cli import completion
from tests.cli.conftest import Foreman
from tests.client.wire_stub import Answer, running_stub
from tests.conftest import ROOT, Server, free_port


def offered(server: str, *words: str) -> list[str]:
    environment = {
        **os.environ,
        "FOREMAN_URL": server,
        "_FOREMAN_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("foreman", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'foreman'; from app.cli import main; main()"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_job_ids_queues_states_and_commands_are_offered(foreman: Foreman, shared_server: Server) -> None:
    job_id = foreman("submit", "--kind", "completed-kind", "--queue", "completed-queue").out.strip()
    assert job_id in offered(shared_server.url, "get", "")
    assert offered(shared_server.url, "get", job_id[:20]) == [job_id]
    assert "completed-queue" in offered(shared_server.url, "list", "--queue", "comp")
    assert "completed-kind" in offered(shared_server.url, "list", "--kind", "comp")
    assert offered(shared_server.url, "list", "--state", "s") == ["skipped", "stale"]
    assert offered(shared_server.url, "queues", "pause", "completed-q") == ["completed-queue"]
    assert offered(shared_server.url, "doc") == ["doctor"]
    assert offered(shared_server.url, "submit", "--model", "ec") == ["echo"]


def test_a_server_that_is_away_or_says_nonsense_offers_nothing_and_says_nothing() -> None:
    assert offered(f"http://127.0.0.1:{free_port()}", "get", "") == []
    with running_stub() as stub:
        stub.answers(Answer(200, b"<html>"))
        assert offered(stub.url, "get", "") == []
    assert offered("nonsense", "list", "--queue", "") == []


@pytest.mark.parametrize("nasty", ["$(reboot)", "a b", "`x`", "a;b", "a'b", 'a"b', "a\nb", "a\\b", ""])
def test_nothing_is_offered_that_a_shell_would_run(nasty: str) -> None:
    """zsh evaluates what it is offered, and models are named by others."""
    assert completion._beginning("", [(nasty, "")]) == []
    [(_, words)] = completion._beginning("", [("llama3:8b", f"{nasty} it is")])
    assert not set(words) & set("$`;'\"\\\n()")
