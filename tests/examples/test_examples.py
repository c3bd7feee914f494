"""The examples do what they say, against a real server."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import foreman_client as fc
from app.embedded import EmbeddedPostgres
from foreman_client import Foreman
from tests.conftest import ROOT, Server, wait_until
from tests.serving import serving

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("examples"), FOREMAN_SWEEP_SECONDS="0.2") as server:
        yield server


@pytest.fixture
def foreman(server: Server) -> Iterator[Foreman]:
    with Foreman(server.url) as client:
        yield client


@pytest.fixture
def start(server: Server) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*command: str) -> subprocess.Popen[str]:
        # A lease that outlives any pause of a busy machine: no test here is about one that ends.
        environment = {
            **os.environ,
            "FOREMAN_URL": server.url,
            "PYTHONPATH": str(ROOT),
            "LEASE_SECONDS": "60",
        }
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


PYTHON = (sys.executable, "examples/report_worker.py")
NODE = ("node", "examples/worker.mjs")
BASH = ("bash", "examples/worker.sh")

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def test_the_python_worker_writes_a_report_and_tells_how_far_it_is(foreman: Foreman, start: Start) -> None:
    start(*PYTHON)
    handle = foreman.submit("generate_report", {"title": "Q3", "seconds_per_section": 0.01})
    job = handle.wait(30)
    assert [section["heading"] for section in job.result["sections"]] == ["Summary", "Figures", "Outlook"]
    assert job.progress
    assert (job.progress.current, job.progress.total) == (3, 3)
    with pytest.raises(fc.JobFailed) as failed:
        foreman.submit("generate_report", {}).wait(30)
    assert failed.value.code == "no_title"


def test_its_caller_approves_the_report_and_prints_it(start: Start) -> None:
    start(*PYTHON)
    out, err = start(sys.executable, "examples/request_report.py", "Q4").communicate(timeout=60)
    assert "Outlook of Q4." in out
    assert "waiting for approval" in err
    assert "approved by request_report.py" in err


def test_a_rejected_report_fails_with_the_reason(foreman: Foreman, start: Start) -> None:
    start(*PYTHON)
    payload = {"title": "Q1", "seconds_per_section": 0.01, "needs_approval": True}
    handle = foreman.submit("generate_report", payload)
    handle.send_event("reject", {"why": "the figures are wrong"})
    with pytest.raises(fc.JobFailed, match="the figures are wrong"):
        handle.wait(30)


@needs_node
def test_the_node_worker_counts_words(foreman: Foreman, start: Start) -> None:
    start(*NODE)
    handles = [foreman.submit("word_count", {"text": "to be or not to be"}) for _ in range(10)]
    for handle in handles:
        assert handle.result(30) == {"words": 6, "counts": {"to": 2, "be": 2, "or": 1, "not": 1}}
    with pytest.raises(fc.JobFailed) as failed:
        foreman.submit("word_count", {}).wait(30)
    assert failed.value.code == "no_text"


@needs_curl
def test_the_bash_worker_makes_checksums(foreman: Foreman, start: Start) -> None:
    start(*BASH)
    for text in ("hello", "grüß dich"):
        expected = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
        assert foreman.submit("checksum", {"text": text}).result(30) == expected


LONG = [
    pytest.param(PYTHON, "generate_report", {"title": "Long", "seconds_per_section": 60}, id="python"),
    pytest.param(NODE, "word_count", {"text": "a b c", "pause_ms": 60_000}, id="node", marks=needs_node),
    pytest.param(BASH, "checksum", {"text": "long", "seconds": 60}, id="bash", marks=needs_curl),
]


@pytest.mark.parametrize(("command", "kind", "payload"), LONG)
def test_a_cancelled_job_stops_and_the_worker_goes_on(
    foreman: Foreman, start: Start, command: tuple[str, ...], kind: str, payload: dict[str, Any]
) -> None:
    process = start(*command)
    handle = foreman.submit(kind, payload)
    wait_until(lambda: handle.status().state == "working", 30)
    handle.cancel()
    # Well before the server would do it by itself: the worker has confirmed.
    with pytest.raises(fc.JobCancelled):
        handle.wait(8)
    assert process.poll() is None


@pytest.mark.parametrize(("command", "kind", "payload"), LONG)
def test_a_worker_that_is_told_to_leave_gives_its_job_back(
    foreman: Foreman, start: Start, command: tuple[str, ...], kind: str, payload: dict[str, Any]
) -> None:
    process = start(*command)
    handle = foreman.submit(kind, payload)
    wait_until(lambda: handle.status().state == "working", 30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    job = handle.status()
    assert (job.state, job.attempt) == ("queued", 0), job
    handle.cancel()
