"""A call that finds its slot free runs as it comes in; whatever would have held it back still does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.conftest import MakeServer, Server, wait_until
from tests.engine.fleet import QUICK, check_invariants, count, fetch, story
from tests.fakes import FakeOllama
from tests.passthrough.conftest import job_of, jobs_of, started

MODEL = "llama3.2"
PASSED_BY = "SELECT id FROM jobs WHERE started_at IS NOT NULL AND queued_seconds = 0"
AT_ONCE = [("queued", "enqueue"), ("loading", "claim"), ("working", "start"), ("done", "complete")]


def ask(server: Server, **headers: str) -> httpx.Response:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "stream": False,
    }
    return httpx.post(f"{server.url}/api/chat", json=body, headers=headers, timeout=60)


def was_at_once(server: Server, answer: httpx.Response) -> bool:
    """It was never queued: its submission and its claim were one statement."""
    passed_by = {row["id"] for row in fetch(server.database_url, PASSED_BY)}
    return answer.headers["x-foreman-job-id"] in passed_by


def until_at_once(server: Server) -> httpx.Response:
    """The first calls load the model, and a look for waiting work may be under way."""

    def asked() -> httpx.Response | None:
        answer = ask(server)
        assert answer.status_code == 200, answer.text
        return answer if was_at_once(server, answer) else None

    found = wait_until(asked)
    assert found is not None
    return found


def test_a_call_runs_as_it_comes_in_and_leaves_the_same_story(fake: FakeOllama, foreman: Server) -> None:
    answer = until_at_once(foreman)
    job_id = answer.headers["x-foreman-job-id"]
    assert story(foreman.database_url, job_id) == AT_ONCE
    job = job_of(foreman, job_id)
    assert (job["state"], job["attempt"], job["target"], job["seq"]) == ("done", 1, "default", 4)
    assert job["timings"]["queued_seconds"] == 0
    assert job["usage"]["completion_tokens"] > 0
    assert check_invariants(foreman.database_url) == len(jobs_of(foreman))


def test_a_paused_queue_holds_it_back(fake: FakeOllama, foreman: Server) -> None:
    until_at_once(foreman)
    queue = f"{foreman.url}/queues/default"
    httpx.post(f"{queue}/pause").raise_for_status()
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask, foreman)
        try:
            wait_until(lambda: jobs_of(foreman, state="queued"))
        finally:
            httpx.post(f"{queue}/resume").raise_for_status()
        assert not was_at_once(foreman, asking.result())


def test_a_queue_with_rules_of_its_own_is_not_passed_by(fake: FakeOllama, foreman: Server) -> None:
    until_at_once(foreman)
    rules = {
        "limited": {"max_running": 1},
        "keyed": {"key": ["all"], "max_queued": 9},
        "fair": {"fair_by": "tenant"},
    }
    for queue, settings in rules.items():
        httpx.put(f"{foreman.url}/queues/{queue}", json=settings).raise_for_status()
    fake.control(token_seconds=0.05, reset_stats=True)
    for queue in rules:
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda _: ask(foreman, **{"X-Foreman-Queue": queue}), range(3)))  # noqa: B023 - over before the next
        assert [answer.status_code for answer in answers] == [200] * 3
        assert not any(was_at_once(foreman, answer) for answer in answers)
        if queue != "fair":
            assert fake.stats()["max_running"] == 1


def test_an_idempotency_key_still_makes_one_job(fake: FakeOllama, foreman: Server) -> None:
    until_at_once(foreman)
    before = len(jobs_of(foreman))
    answers = [ask(foreman, **{"Idempotency-Key": "once"}) for _ in range(2)]
    assert answers[0].json()["message"] == answers[1].json()["message"]
    assert len(jobs_of(foreman)) == before + 1


def test_a_deadline_is_kept(fake: FakeOllama, foreman: Server) -> None:
    until_at_once(foreman)
    fake.control(faults=[{"kind": "hang", "times": 1}])
    late = ask(foreman, **{"X-Foreman-Deadline-Seconds": "0.5"})
    assert was_at_once(foreman, late)
    assert job_of(foreman, late.headers["x-foreman-job-id"])["state"] == "expired"


def test_who_waits_with_a_higher_priority_goes_first(
    fake: FakeOllama, make_server: MakeServer, database_url: str
) -> None:
    server = started(make_server, fake, FOREMAN_OLLAMA_SLOTS="1", **QUICK)
    until_at_once(server)
    fake.control(faults=[{"kind": "hang", "times": 1}])
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, server)
        wait_until(lambda: fake.stats()["running"] == 1)
        job = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "priority": 50}
        urgent = httpx.post(f"{server.url}/jobs", json=job).json()["job_id"]
        later = [pool.submit(ask, server) for _ in range(3)]
        wait_until(lambda: count(database_url, "queued") == 4)
        [running] = jobs_of(server, state="working")
        httpx.post(f"{server.url}/jobs/{running['job_id']}/cancel").raise_for_status()
        assert first.result().status_code >= 400
        after = [each.result() for each in later]
    assert [answer.status_code for answer in after] == [200] * 3
    began = {job["job_id"]: job["started_at"] for job in jobs_of(server)}
    assert all(began[urgent] < began[answer.headers["x-foreman-job-id"]] for answer in after)
    assert not any(was_at_once(server, answer) for answer in after)


def test_one_slot_is_one_slot_for_two_processes(
    fake: FakeOllama, make_server: MakeServer, database_url: str
) -> None:
    settings = {"FOREMAN_OLLAMA_SLOTS": "1", **QUICK}
    servers = [started(make_server, fake, **settings) for _ in range(2)]
    until_at_once(servers[0])
    fake.control(token_seconds=0.005, reset_stats=True)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: ask(servers[n % 2]), range(36)))
    assert [answer.status_code for answer in answers] == [200] * 36
    assert fake.stats()["max_running"] == 1
    assert fake.stats()["waiting"] == 0
    check_invariants(database_url)


def test_slots_are_never_given_twice_by_one_process(
    fake: FakeOllama, make_server: MakeServer, database_url: str
) -> None:
    """Calls that run as they come in beside jobs that are claimed, for the same slots."""
    server = started(make_server, fake, FOREMAN_OLLAMA_SLOTS="3", **QUICK)
    until_at_once(server)
    fake.control(token_seconds=0.002, reset_stats=True)
    stop = threading.Event()

    def submits() -> None:
        while not stop.is_set():
            job = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
            httpx.post(f"{server.url}/jobs", json=job).raise_for_status()

    with ThreadPoolExecutor(9) as pool:
        submitting = pool.submit(submits)
        answers = list(pool.map(lambda _: ask(server), range(80)))
        stop.set()
        submitting.result()
    assert [answer.status_code for answer in answers] == [200] * 80
    wait_until(lambda: count(database_url, "queued", "loading", "working") == 0)
    assert fake.stats()["max_running"] == 3
    check_invariants(database_url)


def test_a_call_whose_server_is_killed_is_rescued(
    fake: FakeOllama, make_server: MakeServer, database_url: str
) -> None:
    server = started(make_server, fake, **QUICK)
    until_at_once(server)
    fake.control(faults=[{"kind": "hang", "times": 3}])
    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask, server) for _ in range(3)]
        wait_until(lambda: fake.stats()["running"] == 3)
        hanging = {job["job_id"] for job in jobs_of(server, state="working")}
        server.kill()
        assert all(isinstance(each.exception(), httpx.HTTPError) for each in asking)
    server.start()
    wait_until(lambda: count(database_url, "queued", "loading", "working") == 0)
    for job_id in hanging:
        job = job_of(server, job_id)
        assert (job["state"], job["attempt"]) == ("done", 2)
        assert ("queued", "rescue") in story(database_url, job_id)
    check_invariants(database_url)
