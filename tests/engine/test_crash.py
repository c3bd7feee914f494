"""kill -9: nothing that was acknowledged is lost, and nothing runs under two leases at once."""

import itertools

import httpx

from app.store.history import ALL_EVENTS
from tests.conftest import MakeServer, wait_until
from tests.engine.fleet import QUICK, all_reach, check_invariants, count, echo, fetch, submit

LEASE_SECONDS = float(QUICK["FOREMAN_LEASE_SECONDS"])

# Each claim with what ended it: the next transition that left the run.
RUNS = f"""
SELECT claim.job_id, claim.at AS began, ended.at AS ended, ended.reason
FROM {ALL_EVENTS} AS claim
CROSS JOIN LATERAL (
    SELECT at, reason FROM {ALL_EVENTS} AS events
    WHERE job_id = claim.job_id AND seq > claim.seq AND type NOT IN ('loading', 'working', 'cancel_requested', 'late_settlement')
    ORDER BY seq LIMIT 1
) AS ended
WHERE claim.type = 'loading'
ORDER BY claim.job_id, claim.seq
"""


def test_five_hundred_and_fifty_jobs_survive_kill_9(make_server: MakeServer, database_url: str) -> None:
    server = make_server(**QUICK)
    ids = submit(server, *(echo(2, 400) for _ in range(550)))
    wait_until(lambda: count(database_url, "loading", "working") >= 50, 30)
    server.kill()
    running = count(database_url, "loading", "working")
    assert running >= 50
    assert count(database_url, "queued") >= 300
    server.start()
    all_reach(database_url, "done", 90)

    assert check_invariants(database_url) == 550
    rows = fetch(database_url, "SELECT id, attempt, result FROM jobs")
    assert {row["id"] for row in rows} == set(ids)
    assert {row["attempt"] for row in rows} == {1, 2}
    runs = fetch(database_url, RUNS)
    rescued = [run for run in runs if run["reason"] == "rescue"]
    # Each that ran when the server died, and no other.
    assert len(rescued) == running
    for run in rescued:
        assert (run["ended"] - run["began"]).total_seconds() >= LEASE_SECONDS
    # Runs of one job follow each other, they do not overlap.
    for earlier, later in itertools.pairwise(runs):
        if earlier["job_id"] == later["job_id"]:
            assert earlier["ended"] <= later["began"]


def test_a_submission_that_was_acknowledged_survives_kill_9_at_any_moment(
    make_server: MakeServer, database_url: str
) -> None:
    server = make_server(**QUICK, FOREMAN_ROLE="api")
    acknowledged: list[str] = []
    for _ in range(3):
        with httpx.Client(base_url=server.url, timeout=10) as client:
            for n in range(20):
                answer = client.post("/jobs", json={"kind": "own-kind"})
                acknowledged.append(answer.json()["job_id"])
                if n == 19:
                    server.kill()
        server.start()
    kept = {row["id"] for row in fetch(database_url, "SELECT id FROM jobs")}
    assert set(acknowledged) <= kept
    assert check_invariants(database_url) == len(kept)
