"""Several servers on one database: each job once, whoever sleeps, hangs or plays one role only."""

import os
import signal
import socket
from pathlib import Path

import httpx

from tests.conftest import MakeServer, Server, wait_until
from tests.engine.fleet import QUICK, all_reach, check_invariants, count, echo, fetch, submit
from tests.processes import children_of


def test_two_servers_share_the_work_and_run_each_job_once(make_server: MakeServer, database_url: str) -> None:
    servers = [make_server(**QUICK), make_server(**QUICK)]
    for server in servers:
        submit(server, *(echo(1, 300) for _ in range(100)))
    all_reach(database_url, "done", 60)
    assert check_invariants(database_url) == 200
    assert fetch(database_url, "SELECT 1 FROM jobs WHERE attempt <> 1") == []
    shares = {
        row["worker"].split(":")[-1]: row["count"]
        for row in fetch(database_url, "SELECT worker, count(*) FROM jobs GROUP BY 1")
    }
    assert set(shares) == {str(server.pid) for server in servers}


def test_a_wait_on_one_server_hears_of_a_job_that_another_one_finished(
    make_server: MakeServer, database_url: str
) -> None:
    # Polling so seldom that only a notice can be in time.
    api = make_server(FOREMAN_ROLE="api", FOREMAN_POLL_SECONDS="30")
    make_server(FOREMAN_ROLE="worker", FOREMAN_POLL_SECONDS="30")
    answer = httpx.post(f"{api.url}/jobs", json=echo(3, 100), headers={"Prefer": "wait=15"}, timeout=20)
    assert (answer.status_code, answer.json()["state"]) == (200, "done")


def test_an_api_only_accepts_and_a_worker_only_works(make_server: MakeServer, database_url: str) -> None:
    api = make_server(**QUICK, FOREMAN_ROLE="api")
    [job_id] = submit(api, {"kind": "noop"})
    assert httpx.get(f"{api.url}/jobs/{job_id}", params={"wait": 1}).json()["state"] == "queued"
    worker = make_server(**QUICK, FOREMAN_ROLE="worker")
    assert httpx.get(f"{worker.url}/healthz").status_code == 200
    assert httpx.post(f"{worker.url}/jobs", json={"kind": "noop"}).status_code == 404
    assert httpx.get(f"{api.url}/jobs/{job_id}", params={"wait": 15}, timeout=20).json()["state"] == "done"
    assert fetch(database_url, "SELECT worker FROM jobs")[0]["worker"].endswith(str(worker.pid))


def test_a_server_that_slept_past_its_leases_does_not_settle_what_another_one_took_over(
    make_server: MakeServer, database_url: str
) -> None:
    sleeper = make_server(**QUICK)
    ids = submit(sleeper, *(echo(4, 700) for _ in range(10)))
    wait_until(lambda: count(database_url, "working") == 10, 20)
    os.kill(sleeper.pid, signal.SIGSTOP)
    try:
        other = make_server(**QUICK)
        all_reach(database_url, "done", 60)
        before = fetch(database_url, "SELECT id, worker, result, attempt FROM jobs ORDER BY id")
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    assert {row["worker"].split(":")[-1] for row in before} == {str(other.pid)}
    assert {row["attempt"] for row in before} == {2}

    # It wakes up, finds its leases gone, stops its runs and goes on working.
    def runs() -> float:
        text = httpx.get(f"{sleeper.url}/metrics", timeout=10).text
        return float(
            next(line for line in text.splitlines() if line.startswith("foreman_jobs_running ")).split()[1]
        )

    wait_until(lambda: runs() == 0, 20)
    other.stop()
    [fresh] = submit(sleeper, echo(1))
    assert httpx.get(f"{sleeper.url}/jobs/{fresh}", params={"wait": 20}, timeout=30).json()["state"] == "done"
    after = fetch(
        database_url,
        "SELECT id, worker, result, attempt FROM jobs WHERE id = ANY ($1::text[]) ORDER BY id",
        ids,
    )
    assert after == before
    assert check_invariants(database_url) == 11


def test_a_lost_lease_stops_the_run(make_server: MakeServer, database_url: str) -> None:
    """Taken away in the table: the run notices by its next heartbeat, not when it would have ended."""
    server = make_server(**QUICK)
    [job_id] = submit(server, echo(200, 500))
    wait_until(lambda: count(database_url, "working") == 1, 20)
    fetch(
        database_url,
        "UPDATE jobs SET lease_token = 'somebody-elses', lease_expires_at = now() + interval '1 hour'",
    )

    def idle() -> bool:
        text = httpx.get(f"{server.url}/metrics").text
        return "foreman_jobs_running 0.0" in text

    wait_until(idle, 10)
    row = fetch(database_url, "SELECT * FROM jobs")[0]
    assert (row["id"], row["state"], row["lease_token"]) == (job_id, "working", "somebody-elses")


def test_a_job_that_comes_back_to_the_same_server_ends_its_former_run(
    make_server: MakeServer, database_url: str
) -> None:
    """The lease is so long that no heartbeat is due: that it has the job again is all the server can know by."""
    server = make_server(**QUICK | {"FOREMAN_LEASE_SECONDS": "3600", "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8"})
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(60)
        url = f"http://127.0.0.1:{target.getsockname()[1]}/"
        submit(server, {"kind": "http", "payload": {"url": url, "timeout_seconds": 600}})
        former, _ = target.accept()
        with former:
            former.settimeout(60)
            wait_until(lambda: count(database_url, "working") == 1, 20)
            fetch(
                database_url,
                "UPDATE jobs SET lease_token = 'x', lease_expires_at = now() - interval '1 minute'",
            )
            latter, _ = target.accept()
            with latter:
                while former.recv(65536):
                    pass  # the request; then the server hangs up
                assert latter.recv(65536)
                latter.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                all_reach(database_url, "done", 60)
    assert [row["attempt"] for row in fetch(database_url, "SELECT attempt FROM jobs")] == [2]


def children(server: Server) -> set[int]:
    """Processes that serve; multiprocessing's own tracker is none of them."""
    return {pid for pid, command in children_of(server.pid).items() if b"spawn_main" in command}


def test_two_processes_serve_on_one_port_and_one_that_dies_is_replaced(
    make_server: MakeServer, database_url: str
) -> None:
    server = make_server(**QUICK, FOREMAN_PROCESSES="2")
    wait_until(lambda: len(children(server)) == 2, 20)
    submit(server, *(echo(1, 300) for _ in range(150)))
    all_reach(database_url, "done", 60)
    shares = fetch(database_url, "SELECT DISTINCT worker FROM jobs")
    assert {int(row["worker"].split(":")[-1]) for row in shares} <= children(server)

    victim = min(children(server))
    ids = submit(server, *(echo(3, 400) for _ in range(20)))
    wait_until(lambda: count(database_url, "working") > 0, 20)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in children(server) and len(children(server)) == 2, 20)
    all_reach(database_url, "done", 60)
    assert check_invariants(database_url) == 150 + len(ids)
    assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_the_serving_processes_end_with_their_parent(make_server: MakeServer) -> None:
    server = make_server(**QUICK, FOREMAN_PROCESSES="2")
    wait_until(lambda: len(children(server)) == 2, 20)
    orphans = children(server)
    server.kill()

    def gone() -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in orphans)

    wait_until(gone, 20)
