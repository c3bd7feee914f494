"""What Foreman has just loaded or unloaded itself is shown at once, not at the next look of its inventory."""

from collections.abc import Callable
from typing import Any

import httpx
import ollama

from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.passthrough.conftest import job_of, started, target_of

HELLO = [{"role": "user", "content": "Hello, world"}]
SELDOM = {"FOREMAN_INVENTORY_SECONDS": "3600"}


def shown(server: Server) -> list[str]:
    return [each["model"] for each in httpx.get(f"{server.url}/api/ps").json()["models"]]


def test_what_was_just_loaded_or_unloaded_is_shown_at_once(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = started(make_server, fake, **SELDOM)
    with ollama.Client(host=server.url, timeout=60) as client:
        assert shown(server) == []
        client.chat("llama3.2", HELLO)
        assert shown(server) == ["llama3.2:latest"]
        # As the target tells it, not as we imagine it.
        assert httpx.get(f"{server.url}/api/ps").json() == httpx.get(f"{fake.url}/api/ps").json()
        assert target_of(server)["resident"] == ["llama3.2:latest"]
        # Used again, it stays for longer.
        client.chat("llama3.2", HELLO, keep_alive="2h")
        assert httpx.get(f"{server.url}/api/ps").json() == httpx.get(f"{fake.url}/api/ps").json()
        client.generate("llama3.2", keep_alive=0)
        assert shown(server) == []
        # Loaded by an empty request, unloaded by the end of a real one.
        client.generate("llama3.2")
        assert shown(server) == ["llama3.2:latest"]
        client.chat("llama3.2", HELLO, keep_alive=0)
        assert shown(server) == []


def test_a_job_that_loads_is_shown_while_it_runs_and_on_the_other_replica_soon(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    api = started(make_server, fake, **SELDOM, FOREMAN_ROLE="api")
    started(make_server, fake, **SELDOM)
    fake.control(token_seconds=0.05, reply_tokens=400)
    body: dict[str, Any] = {"model": "llama3.2", "messages": HELLO}
    job_id = httpx.post(f"{api.url}/jobs", json=body).json()["job_id"]
    # This one runs nothing itself: it hears of it through the database.
    wait_until(lambda: shown(api) == ["llama3.2:latest"], 20)
    assert job_of(api, job_id)["state"] in {"loading", "working"}
    httpx.post(f"{api.url}/jobs/{job_id}/cancel")


def test_what_others_load_and_what_expires_is_shown_within_a_moment(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = started(make_server, fake, **SELDOM)
    with ollama.Client(host=fake.url, timeout=60) as somebody_else:
        somebody_else.generate("llama3.2", keep_alive="1h")
        wait_until(lambda: shown(server) == ["llama3.2:latest"])
        somebody_else.generate("llama3.2", keep_alive=0)
        wait_until(lambda: shown(server) == [])
    with ollama.Client(host=server.url, timeout=60) as client:
        client.generate("llama3.2", keep_alive=0.5)
        wait_until(lambda: shown(server) == [])
        client.generate("llama3.2", keep_alive="1h")
    assert shown(server) == ["llama3.2:latest"]
    fake.pause()
    try:
        # It does not answer, and is not waited for: what it told last counts, until that is past its time.
        wait_until(lambda: target_of(server)["state"] == "asleep" or shown(server) != ["llama3.2:latest"])
        assert shown(server) == ["llama3.2:latest"]
    finally:
        fake.resume()


def test_a_job_for_a_resident_model_starts_with_its_claim(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = started(make_server, fake, **SELDOM)

    def edges() -> list[tuple[int, str, str]]:
        answer = httpx.post(f"{server.url}/api/chat", json={"model": "llama3.2", "messages": HELLO})
        job_id = answer.headers["x-foreman-job-id"]
        events = httpx.get(f"{server.url}/jobs/{job_id}/events").json()["events"]
        loading, working = (each for each in events if each["type"] in {"loading", "working"})
        together.append(loading["at"] == working["at"])
        return [(each["seq"], each["type"], each["reason"]) for each in events if each["type"] != "output"]

    together: list[bool] = []
    assert [edge[1] for edge in edges()] == ["queued", "loading", "working", "done"]
    assert [edge[1:] for edge in edges()] == [
        ("queued", "enqueue"),
        ("loading", "claim"),
        ("working", "start"),
        ("done", "complete"),
    ]
    assert together == [False, True]
