"""SIGTERM: stop accepting, stop claiming, finish or release what runs, exit 0."""

import signal
import time

import httpx
import pytest

from app.store.history import ALL_EVENTS
from tests.api.wire import connect, listen
from tests.conftest import MakeServer, wait_until
from tests.engine.fleet import QUICK, check_invariants, count, echo, fetch, story, submit
from tests.patience import AT_ONCE


def test_running_jobs_finish_within_the_grace_and_waiting_ones_stay(
    make_server: MakeServer, database_url: str
) -> None:
    server = make_server(**{**QUICK, "FOREMAN_SHUTDOWN_GRACE_SECONDS": "20"})
    submit(server, *(echo(2, 500) for _ in range(100)))
    wait_until(lambda: count(database_url, "working") > 0, 20)
    assert server.process is not None
    # Said twice, as impatient supervisors do: the second must not disturb the first.
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0
    # Nothing was begun that could not be finished.
    rows = fetch(database_url, "SELECT state, count(*) FROM jobs GROUP BY 1")
    assert {row["state"] for row in rows} == {"done", "queued"}
    assert (
        fetch(database_url, f"SELECT 1 FROM {ALL_EVENTS} AS events WHERE reason IN ('release', 'rescue')")
        == []
    )
    assert check_invariants(database_url) == 100


def test_what_does_not_finish_is_released_without_a_spent_attempt(
    make_server: MakeServer, database_url: str
) -> None:
    server = make_server(**{**QUICK, "FOREMAN_SHUTDOWN_GRACE_SECONDS": "0.3"})
    ids = submit(server, *(echo(60, 500, max_attempts=1) for _ in range(5)), {"kind": "noop"})
    wait_until(lambda: count(database_url, "working") == 5, 20)
    assert server.stop() == 0
    rows = fetch(database_url, "SELECT * FROM jobs WHERE id = ANY ($1::text[])", ids[:5])
    for row in rows:
        assert (row["state"], row["attempt"], row["reason"]) == ("queued", 0, "worker_shutdown")
        assert row["ready_at"] is not None
    assert story(database_url, ids[0])[-1] == ("queued", "release")
    assert check_invariants(database_url) == 6


def test_another_server_takes_over_at_once_what_was_released(
    make_server: MakeServer, database_url: str
) -> None:
    patient = {**QUICK, "FOREMAN_SHUTDOWN_GRACE_SECONDS": "0", "FOREMAN_LEASE_SECONDS": "600"}
    first = make_server(**patient)
    submit(first, *(echo(200, 500) for _ in range(5)))
    wait_until(lambda: count(database_url, "working") == 5, 20)
    second = make_server(**patient)
    assert first.stop() == 0

    def taken_over() -> bool:
        rows = fetch(database_url, "SELECT worker FROM jobs WHERE state = 'working'")
        return len(rows) == 5 and all(row["worker"].endswith(f":{second.pid}") for row in rows)

    wait_until(taken_over, 10)  # far sooner than any lease would have run out
    assert {row["attempt"] for row in fetch(database_url, "SELECT attempt FROM jobs")} == {1}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once_with_0(make_server: MakeServer, how: signal.Signals) -> None:
    server = make_server(FOREMAN_SHUTDOWN_GRACE_SECONDS="600")
    assert server.process is not None
    server.process.send_signal(how)
    assert server.process.wait(120) == 0  # no grace is waited for when nothing runs
    assert "Traceback" not in server.log()


def test_whoever_waits_on_the_line_is_answered_and_nobody_new_is_let_in(
    make_server: MakeServer, database_url: str
) -> None:
    server = make_server(**{**QUICK, "FOREMAN_SHUTDOWN_GRACE_SECONDS": "2"})
    [_running, waiting] = submit(server, echo(60, 500), {"kind": "own-kind"})
    wait_until(lambda: count(database_url, "working") == 1, 20)
    with connect(server) as wire:
        wire.sendall(f"GET /jobs/{waiting}?wait=120 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert httpx.get(f"{server.url}/readyz").status_code == 200  # by now it has heard the other one too
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        # Far sooner than its wait would have been over.
        answer = listen(wire, began, AT_ONCE, until_answered=True)
    assert answer.statuses == [200]
    assert b'"state":"queued"' in answer.raw

    def refused() -> bool:
        try:
            return httpx.get(f"{server.url}/readyz", timeout=10).status_code == 503
        except httpx.TransportError:
            return True

    wait_until(refused, 10)
    assert server.process.wait(120) == 0
