"""Schedules: one job per tick over all replicas."""

import itertools
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.engine.scheduler import PATIENCE
from app.errors import InvalidRequest
from app.jobs.cron import check_cron, due_ticks, next_tick
from tests.conftest import MakeServer, Server
from tests.engine.fleet import fetch
from tests.queues.conftest import Caller, soon

JOB = {"kind": "noop"}
# The whole promise is a minute.
SCHEDULE_SECONDS = int(os.environ.get("SCHEDULE_SECONDS", "9"))


def made_by(call: Caller, name: str) -> list[dict[str, Any]]:
    answered: list[dict[str, Any]] = call.http.get(
        "/jobs", params={"metadata.schedule": name, "limit": 200}
    ).json()["jobs"]
    return answered


def test_a_schedule_makes_a_job_at_each_tick(call: Caller, queue: str) -> None:
    made = call.http.put(f"/schedules/{queue}", json={"cron": "* * * * * *", "job": {**JOB, "queue": queue}})
    assert made.status_code == 201
    assert made.json()["job"] == {**JOB, "queue": queue}
    soon(lambda: len(made_by(call, queue)) >= 2)
    shown = call.http.get(f"/schedules/{queue}").json()
    assert shown["last_outcome"] == "accepted"
    assert shown["last_job_id"] in [job["job_id"] for job in made_by(call, queue)]
    assert shown["last_at"] < shown["next_at"]
    assert call.http.delete(f"/schedules/{queue}").status_code == 204
    count = len(made_by(call, queue))
    # Ticks of another one, all of them after that.
    later = f"{queue}-later"
    call.http.put(f"/schedules/{later}", json={"cron": "* * * * * *", "job": {**JOB, "queue": queue}})
    soon(lambda: len(made_by(call, later)) >= 2)
    call.http.delete(f"/schedules/{later}")
    assert len(made_by(call, queue)) == count
    assert call.http.get(f"/schedules/{queue}").status_code == 404
    assert call.http.delete(f"/schedules/{queue}").status_code == 404


def test_a_schedule_tells_its_last_ticks_and_its_next_ones(call: Caller, queue: str) -> None:
    call.configure(queue, max_depth=1)
    body = {"cron": "* * * * * *", "job": {"kind": "work", "queue": queue}}
    made = call.http.put(f"/schedules/{queue}", json=body).json()
    assert made["last_ticks"] == []
    soon(lambda: len(call.http.get(f"/schedules/{queue}").json()["last_ticks"]) >= 3)
    shown = call.http.get(f"/schedules/{queue}").json()
    *refused, accepted = shown["last_ticks"]
    assert (accepted["outcome"], accepted["error"]) == ("accepted", None)
    assert call.job(accepted["job_id"])["metadata"] == {"schedule": queue}
    assert {(each["outcome"], each["job_id"]) for each in refused} == {("queue_full", None)}
    assert all(each["error"] for each in refused)
    moments = [each["at"] for each in reversed(shown["last_ticks"])] + shown["next_ticks"]
    assert moments == sorted(set(moments))
    assert (shown["last_ticks"][0]["at"], shown["next_ticks"][0]) == (shown["last_at"], shown["next_at"])
    assert len(shown["next_ticks"]) == 5
    [listed] = [each for each in call.http.get("/schedules").json()["schedules"] if each["name"] == queue]
    assert len(listed["last_ticks"]) >= 3
    assert call.http.delete(f"/schedules/{queue}").status_code == 204
    anew = call.http.put(f"/schedules/{queue}", json={"cron": "0 0 29 2 *", "job": JOB}).json()
    assert anew["last_ticks"] == []
    assert [moment[5:10] for moment in anew["next_ticks"]] == ["02-29"] * 5


def test_the_next_ticks_that_cannot_be_known_here_are_left_out(call: Caller, queue: str) -> None:
    call.http.put(f"/schedules/{queue}", json={"cron": "0 3 * * *", "job": JOB})
    call.sql("UPDATE schedules SET timezone = 'Mars/Olympus' WHERE name = $1", queue)
    shown = call.http.get(f"/schedules/{queue}").json()
    assert shown["next_ticks"] == [shown["next_at"]]
    call.sql("UPDATE schedules SET timezone = 'UTC', next_at = '9999-01-01' WHERE name = $1", queue)
    shown = call.http.get(f"/schedules/{queue}").json()
    assert shown["next_ticks"][0] == shown["next_at"] == "9999-01-01T00:00:00Z"
    assert call.http.delete(f"/schedules/{queue}").status_code == 204


def test_the_time_zone_counts(call: Caller, queue: str) -> None:
    body = {"cron": "30 12 * * *", "timezone": "Asia/Kolkata", "job": JOB}
    shown = call.http.put(f"/schedules/{queue}", json=body).json()
    assert datetime.fromisoformat(shown["next_at"]).astimezone(UTC).strftime("%H:%M") == "07:00"
    assert queue in [each["name"] for each in call.http.get("/schedules").json()["schedules"]]


def test_changing_only_the_job_keeps_the_tick_to_come(call: Caller, queue: str) -> None:
    body = {"cron": "0 3 * * *", "job": JOB}
    first = call.http.put(f"/schedules/{queue}", json=body).json()
    second = call.http.put(f"/schedules/{queue}", json={**body, "job": {"kind": "noop", "priority": 3}})
    assert second.status_code == 200
    assert second.json()["next_at"] == first["next_at"]
    third = call.http.put(f"/schedules/{queue}", json={**body, "cron": "0 4 * * *"}).json()
    assert third["next_at"] != first["next_at"]


@pytest.mark.parametrize(
    ("cron", "position"),
    [
        ("61 * * * *", 0),
        ("* * * * mon-funday", 8),
        ("0 25 * * *", 2),
        ("*  *  32 * *", 6),
        ("* * * * 13 *", 8),
        ("* * *", 0),
        ("", 0),
        ("0 0 30 2 *", 4),
        ("*/0 * * * *", 0),
    ],
)
def test_a_bad_cron_is_422_with_the_position(call: Caller, queue: str, cron: str, position: int) -> None:
    answer = call.http.put(f"/schedules/{queue}", json={"cron": cron, "job": JOB})
    assert answer.status_code == 422
    assert answer.json()["position"] == position
    assert "cron" in answer.json()["detail"]


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd", "Europe", "x" * 500])
def test_an_unknown_time_zone_is_422(call: Caller, queue: str, zone: str) -> None:
    answer = call.http.put(f"/schedules/{queue}", json={"cron": "* * * * *", "timezone": zone, "job": JOB})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "timezone"


@pytest.mark.parametrize(
    "body",
    [
        {"cron": "* * * * *"},
        {"job": JOB},
        {"cron": "* * * * *", "job": []},
        {"cron": "* * * * *", "job": {"kind": "noop", "priority": 1000}},
        {"cron": "* * * * *", "job": {"kind": "chat"}},
        {"cron": "* * * * *", "job": JOB, "colour": "red"},
        {"cron": 5, "job": JOB},
    ],
)
def test_a_wrong_schedule_is_422(call: Caller, queue: str, body: dict[str, Any]) -> None:
    assert call.http.put(f"/schedules/{queue}", json=body).status_code == 422
    assert call.http.put("/schedules/-", json={"cron": "* * * * *", "job": JOB}).status_code == 422


def test_a_tick_that_the_queue_refuses_is_remembered_and_the_schedule_goes_on(
    call: Caller, queue: str
) -> None:
    call.configure(queue, key=["k"])
    job = {"kind": "work", "queue": queue, "payload": {}}
    call.http.put(f"/schedules/{queue}", json={"cron": "* * * * * *", "job": job})
    soon(lambda: call.http.get(f"/schedules/{queue}").json()["last_outcome"] == "key_busy")
    assert "key" in call.http.get(f"/schedules/{queue}").json()["last_error"]
    call.complete(call.claim(queue)[0])
    soon(lambda: call.http.get(f"/schedules/{queue}").json()["last_outcome"] == "accepted")
    call.http.delete(f"/schedules/{queue}")


def test_three_replicas_make_one_job_per_tick_though_one_is_killed(
    make_server: MakeServer, queue: str
) -> None:
    servers: list[Server] = [make_server() for _ in range(3)]
    with httpx.Client(timeout=10) as http:
        url = servers[0].url
        body = {"cron": "* * * * * *", "job": {"kind": "noop", "queue": queue}}
        first = http.put(f"{url}/schedules/{queue}", json=body).json()["next_at"]
        began = datetime.fromisoformat(first)

        def ticked_for() -> timedelta:
            last = http.get(f"{url}/schedules/{queue}").json()["last_at"] or first
            return datetime.fromisoformat(last) - began

        soon(lambda: ticked_for() >= timedelta(seconds=SCHEDULE_SECONDS / 2), SCHEDULE_SECONDS)
        servers[1].kill()
        soon(lambda: ticked_for() >= timedelta(seconds=SCHEDULE_SECONDS), SCHEDULE_SECONDS)
        ticks = round(ticked_for().total_seconds()) + 1
        http.delete(f"{url}/schedules/{queue}")
    created = _created(servers[0], queue)
    # A machine that stood still for longer than that missed those ticks, and made up for them by one.
    missed = sum(int(gap.total_seconds()) for gap in _gaps(created) if gap >= PATIENCE)
    # The last look and the delete may have ticks between them.
    between = int((created[-1] - began).total_seconds()) + 1
    assert ticks - missed <= len(created) <= max(ticks, between)


LONG_AWAY = """
WITH ticked AS (UPDATE jobs SET created_at = created_at - interval '1 minute')
UPDATE schedules SET next_at = next_at - interval '1 minute', last_at = last_at - interval '1 minute'
"""


FULL = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$
"""


def test_a_tick_that_found_the_disk_full_stays_due(
    make_server: MakeServer, database_url: str, queue: str
) -> None:
    server = make_server()
    body = {"cron": "0 3 * * *", "job": {**JOB, "queue": queue}}
    assert httpx.put(f"{server.url}/schedules/{queue}", json=body).status_code == 201
    fetch(database_url, FULL)
    fetch(database_url, "CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    fetch(database_url, "UPDATE schedules SET next_at = now() - interval '1 second'")
    soon(lambda: "disk is full" in server.log())
    fetch(database_url, "DROP TRIGGER refuse ON jobs")
    soon(lambda: fetch(database_url, "SELECT 1 FROM jobs"))
    [row] = fetch(database_url, "SELECT last_outcome, next_at > now() AS moved_on FROM schedules")
    assert (row["last_outcome"], row["moved_on"]) == ("accepted", True)
    assert len(fetch(database_url, "SELECT 1 FROM jobs")) == 1


def test_ticks_that_nobody_was_there_for_are_one(make_server: MakeServer, queue: str) -> None:
    first = make_server()
    body = {"cron": "* * * * * *", "job": {"kind": "noop", "queue": queue}}
    httpx.put(f"{first.url}/schedules/{queue}", json=body)
    soon(lambda: len(_jobs(first, queue)) >= 1)
    first.stop()
    with httpx.Client() as http:
        sql = Caller(http, first.database_url).sql
        sql(LONG_AWAY)
        [[before]] = sql("SELECT count(*) FROM jobs")
    second = make_server()
    soon(lambda: len(_jobs(second, queue)) >= before + 2)
    httpx.delete(f"{second.url}/schedules/{queue}")
    created = _created(second, queue)
    gaps = _gaps(created)
    assert max(gaps) > timedelta(seconds=50)
    # One for all that was missed, and then no more than one a second again.
    after = created[gaps.index(max(gaps)) + 1 :]
    assert len(after) <= (after[-1] - after[0]).total_seconds() + 2


def _created(server: Server, name: str) -> list[datetime]:
    return [datetime.fromisoformat(job["created_at"]) for job in reversed(_jobs(server, name))]


def _gaps(created: list[datetime]) -> list[timedelta]:
    return [later - earlier for earlier, later in itertools.pairwise(created)]


def _jobs(server: Server, name: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{server.url}/jobs", params={"metadata.schedule": name, "limit": 200})
    answered: list[dict[str, Any]] = answer.json()["jobs"]
    return answered


NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)


def test_a_hiccup_makes_up_for_each_tick_and_an_outage_for_one() -> None:
    patience = timedelta(seconds=3)

    def due(late: float) -> list[datetime]:
        return due_ticks("* * * * * *", "UTC", NOON, NOON + timedelta(seconds=late), patience=patience)

    assert due(0) == [NOON]
    assert due(2.5) == [NOON + timedelta(seconds=n) for n in range(3)]
    assert due(5.5) == [NOON + timedelta(seconds=5)]
    assert due(5) == [NOON + timedelta(seconds=5)]
    year = timedelta(days=365)
    assert due_ticks("0 12 * * *", "UTC", NOON, NOON + year, patience=patience) == [NOON + year]


def test_ticks_follow_the_clock_on_the_wall() -> None:
    before = datetime(2024, 3, 30, 12, tzinfo=UTC)
    ticks = [before]
    for _ in range(3):
        tick = next_tick("30 2 * * *", "Europe/Berlin", ticks[-1])
        assert tick is not None
        ticks.append(tick)
    # On the 31st there is no half past two; the tick comes right after the gap.
    assert [tick.isoformat() for tick in ticks[1:]] == [
        "2024-03-31T01:00:00+00:00",
        "2024-04-01T00:30:00+00:00",
        "2024-04-02T00:30:00+00:00",
    ]


def test_an_expression_that_never_ticks_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        check_cron("0 0 31 2,4,6 *")


def test_a_schedule_that_cannot_be_computed_here_holds_up_no_other(call: Caller, queue: str) -> None:
    """Such as one in a zone that this machine does not know: it is always the one that is due longest."""
    lost = f"{queue}-lost"
    call.http.put(f"/schedules/{lost}", json={"cron": "0 0 1 1 *", "job": {**JOB, "queue": queue}})
    call.sql(
        "UPDATE schedules SET timezone = 'Mars/Olympus', next_at = now() - interval '1 hour' WHERE name = $1",
        lost,
    )
    call.http.put(f"/schedules/{queue}", json={"cron": "* * * * * *", "job": {**JOB, "queue": queue}})
    soon(lambda: len(made_by(call, queue)) >= 2)
    shown = call.http.get(f"/schedules/{lost}").json()
    assert shown["last_outcome"] == "error"
    assert "next tick" in shown["last_error"]
    for name in (queue, lost):
        assert call.http.delete(f"/schedules/{name}").status_code == 204


def test_a_schedule_is_run_once_by_hand_and_its_ticks_stay(call: Caller, queue: str) -> None:
    job = {"kind": "nobody-runs-this", "payload": {}, "queue": queue, "metadata": {"own": "x"}}
    assert call.http.put(f"/schedules/{queue}", json={"cron": "0 0 1 1 *", "job": job}).status_code == 201
    before = call.http.get(f"/schedules/{queue}").json()
    answer = call.http.post(f"/schedules/{queue}/run")
    assert answer.status_code == 202
    job_id = answer.json()["job_id"]
    assert answer.headers["location"] == f"/jobs/{job_id}"
    assert call.job(job_id)["metadata"] == {"schedule": queue, "own": "x"}
    assert call.http.get(f"/schedules/{queue}").json() == before
    # By the rules of its queue, as every other job.
    call.configure(queue, max_depth=1)
    assert call.http.post(f"/schedules/{queue}/run").json()["code"] == "queue_full"
    call.configure(queue, key=["one"], when_full="coalesce")
    second = call.http.post(f"/schedules/{queue}/run")
    assert (second.status_code, second.json()["outcome"]) == (202, "accepted")
    third = call.http.post(f"/schedules/{queue}/run")
    assert (third.status_code, third.json()["outcome"]) == (200, "coalesced")
    assert third.json()["job_id"] == second.json()["job_id"]
    assert call.http.post(f"/schedules/{queue}-none/run").status_code == 404
    assert call.http.post("/schedules/no name/run").status_code == 404
    assert call.http.delete(f"/schedules/{queue}").status_code == 204


def test_schedules_are_searched_and_listed_page_by_page(call: Caller, queue: str) -> None:
    for name in "abc":
        made = call.http.put(f"/schedules/{queue}.{name}", json={"cron": "0 0 1 1 *", "job": JOB})
        assert made.status_code == 201
    found = call.http.get("/schedules", params={"search": queue.upper(), "limit": 2}).json()
    assert ([each["name"][-1] for each in found["schedules"]], found["total"]) == (["a", "b"], 3)
    found = call.http.get("/schedules", params={"search": queue, "limit": 2, "offset": 2}).json()
    assert [each["name"][-1] for each in found["schedules"]] == ["c"]
    for query in ("limit=0", "offset=-1", "serach=x", "search=%00"):
        assert call.http.get(f"/schedules?{query}").status_code == 422
    for name in "abc":
        assert call.http.delete(f"/schedules/{queue}.{name}").status_code == 204
