"""/ui/targets: how each machine is, and waking, testing, adding, changing and removing them."""

import re
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.targets.wake import magic_packet
from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor, text_of
from tests.fakes import FakeOllama
from tests.patience import LONG_WAIT


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeOllama]:
    with FakeOllama() as running:
        yield running


@pytest.fixture
def name(opened: Server) -> Iterator[str]:
    """Of a target that is gone afterwards: with any of them the built-in one is off for all others."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    yield name
    assert httpx.delete(f"{opened.url}/targets/{name}").status_code in {204, 404}


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where nobody listens, and nobody else will."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{kept.getsockname()[1]}"


def put(server: Server, name: str, **fields: Any) -> None:
    answer = httpx.put(f"{server.url}/targets/{name}", json=fields)
    assert answer.is_success, answer.text


def read(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/targets/{name}").json()
    return found


def tile(page: str, name: str) -> str:
    found = re.search(rf'<section class="tile" aria-labelledby="t-{name}".*?</section>', page, re.DOTALL)
    assert found is not None, page
    return text_of(found[0])


def test_the_built_in_target_is_explained_with_the_line_that_adds_a_real_one(visitor: Visitor) -> None:
    page = visitor.get("/ui/targets")
    assert "No machine runs models yet." in page
    assert "FOREMAN_OLLAMA_URL=http://localhost:11434 foreman serve" in page
    assert "says the last message back" in page
    assert "● awake" in tile(page, "echo")
    assert "Test now" not in tile(page, "echo")
    assert "It is built in" in visitor.get("/ui/targets/echo")


def test_a_machine_that_answers_is_shown_with_its_slots_and_what_is_in_its_memory(
    opened: Server, visitor: Visitor, fake: FakeOllama, name: str
) -> None:
    put(opened, name, url=fake.url, slots=3)
    wait_until(lambda: read(opened, name)["state"] == "awake")
    call = {"model": "llama3.2", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    assert httpx.post(f"{opened.url}/api/chat", json=call, timeout=60).status_code == 200
    wait_until(lambda: read(opened, name)["resident"] == ["llama3.2:latest"])
    [resident] = read(opened, name)["residents"]
    assert resident["model"] == "llama3.2:latest"
    assert resident["size_bytes"] > 0
    assert resident["unloads_at"] is not None
    page = visitor.get("/ui/targets")
    text = tile(page, name)
    assert "● awake answered" in text
    assert "○ ○ ○ 0 of 3" in text
    assert re.search(r"llama3.2:latest [\d.]+ GB unloads in 4 min", text)
    assert "qwen3:8b" in text
    assert "No machine runs models yet." not in page


def test_slots_in_use_and_jobs_that_wait_are_counted(
    opened: Server, visitor: Visitor, fake: FakeOllama, name: str
) -> None:
    put(opened, name, url=fake.url, slots=1)
    wait_until(lambda: read(opened, name)["state"] == "awake")
    fake.control(prefill_seconds=LONG_WAIT)
    try:
        job = {"model": "llama3.2", "messages": [{"role": "user", "content": "one two"}], "target": name}
        jobs = [httpx.post(f"{opened.url}/jobs", json=job).json()["job_id"] for _ in range(3)]
        wait_until(lambda: (read(opened, name)["in_use"], read(opened, name)["waiting"]) == (1, 2))
        text = tile(visitor.get("/ui/targets"), name)
        assert "● 1 of 1" in text
        assert "Waiting for it 2 jobs" in text
        for job_id in jobs:
            assert httpx.post(f"{opened.url}/jobs/{job_id}/cancel").is_success
    finally:
        fake.control(prefill_seconds=0.0)


def test_a_machine_that_sleeps_is_shown_with_since_when_why_and_what_waits(
    opened: Server, visitor: Visitor, name: str, nowhere: str
) -> None:
    put(opened, name, url=nowhere)
    wait_until(lambda: read(opened, name)["state"] == "asleep")
    job = {"model": "llama3.2", "messages": [], "target": name}
    job_id = httpx.post(f"{opened.url}/jobs", json=job).json()["job_id"]
    wait_until(lambda: read(opened, name)["waiting"] == 1)
    text = tile(visitor.get("/ui/targets"), name)
    assert "◌ asleep since" in text
    assert "Waiting for it 1 job" in text
    assert "Last trouble could not connect" in text
    # It cannot be woken: it has no wake action.
    assert "Wake now" not in text
    assert httpx.post(f"{opened.url}/jobs/{job_id}/cancel").is_success


def test_a_machine_is_tested_now(
    opened: Server, visitor: Visitor, fake: FakeOllama, name: str, nowhere: str
) -> None:
    put(opened, name, url=fake.url)
    visitor.get("/ui/targets")
    said = visitor.do(f"/ui/targets/{name}/probe", {"back": "/ui/targets"})
    assert f"{name} answers. It has 3 models" in said
    put(opened, name, url=nowhere)
    said = visitor.do(f"/ui/targets/{name}/probe")
    assert f"{name} does not answer. Could not connect" in said
    assert visitor.post("/ui/targets/nothing/probe").status_code == 404


def test_a_machine_is_woken_now(opened: Server, visitor: Visitor, name: str, nowhere: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(60)
        wake = {"mac": "aa:bb:cc:dd:ee:ff", "address": "127.0.0.1", "port": listener.getsockname()[1]}
        put(opened, name, url=nowhere, wake=wake)
        wait_until(lambda: read(opened, name)["state"] == "asleep")
        assert "Wake now" in tile(visitor.get("/ui/targets"), name)
        # Nobody waits for it, and so nobody else wakes it. However often it is asked for, it is done.
        for _ in range(2):
            assert f"{name} was called." in visitor.do(f"/ui/targets/{name}/wake")
            assert listener.recv(200) == magic_packet("aa:bb:cc:dd:ee:ff")


def test_a_machine_that_cannot_be_woken_says_why(
    opened: Server, visitor: Visitor, name: str, nowhere: str
) -> None:
    put(opened, name, url=nowhere)
    visitor.get("/ui/targets")
    assert "This target has no wake action" in visitor.do(f"/ui/targets/{name}/wake")
    put(opened, name, url=nowhere, wake={"url": f"{nowhere}/secret-path"})
    said = visitor.do(f"/ui/targets/{name}/wake")
    assert "It could not be woken: the wake URL was not reached" in said
    assert "secret-path" not in said
    assert visitor.post("/ui/targets/nothing/wake").status_code == 404


def test_a_target_is_added_changed_and_removed_and_its_token_is_shown_to_nobody(
    opened: Server, visitor: Visitor, fake: FakeOllama, name: str
) -> None:
    visitor.get("/ui/targets/+new")
    typed = {"name": name, "url": fake.url, "slots": "2", "tags": "gpu, fast", "token": "tell-nobody"}
    done = visitor.post("/ui/targets/+new", typed)
    page = visitor.get(done.headers["location"])
    assert f"{name} is added." in page
    assert "tell-nobody" not in page
    assert "kept sealed, shown to nobody" in page
    target = read(opened, name)
    assert (target["slots"], target["tags"], target["has_token"]) == (2, ["gpu", "fast"], True)

    # Without a word on it the token stays, and the change can be undone.
    done = visitor.post(f"/ui/targets/{name}", {"url": fake.url, "slots": "5", "tags": "gpu, fast"})
    page = visitor.get(done.headers["location"])
    assert (read(opened, name)["slots"], read(opened, name)["has_token"]) == (5, True)
    undo = re.search(r'<form method="post" action="(/ui/targets/[\w-]+)">(.*?)</form>', page)
    assert undo is not None
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', undo[2]))
    fields.pop("csrf")
    assert "token" not in fields
    assert "is as it was" in visitor.do(undo[1], fields)
    assert (read(opened, name)["slots"], read(opened, name)["has_token"]) == (2, True)

    assert "Undo" not in visitor.do(f"/ui/targets/{name}", {"url": fake.url, "token_remove": "yes"})
    assert read(opened, name)["has_token"] is False
    done = visitor.post(f"/ui/targets/{name}/delete")
    page = visitor.get(done.headers["location"])
    assert f"{name} is removed." in page
    assert "Put it back" in page
    assert httpx.get(f"{opened.url}/targets/{name}").status_code == 404
    assert "is as it was" in visitor.do(f"/ui/targets/{name}", fields)
    assert read(opened, name)["tags"] == ["gpu", "fast"]


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("url", "not a url"),
        ("url", ""),
        ("url", "ftp://x"),
        ("slots", "many"),
        ("slots", "0"),
        ("slots", "99999999999999999999"),
        ("tags", "no name!"),
        ("dialect", "klingon"),
        ("wake_mac", "aa:bb"),
        ("wake_port", "70000"),
        ("token", "bad\nheader"),
    ],
)
def test_what_is_wrong_is_told_at_its_field_and_what_was_typed_stays(
    opened: Server, visitor: Visitor, name: str, nowhere: str, field: str, typed: str
) -> None:
    put(opened, name, url=nowhere)
    visitor.get(f"/ui/targets/{name}")
    fields = {"url": nowhere, "tags": "kept-as-typed", "wake_mac": "aa:bb:cc:dd:ee:ff"} | {field: typed}
    answer = visitor.post(f"/ui/targets/{name}", fields)
    assert answer.status_code == 422
    assert re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', answer.text)
    assert "bad\nheader" not in answer.text
    if field != "tags":
        assert 'value="kept-as-typed"' in answer.text
    assert read(opened, name)["tags"] == []


def test_a_token_does_not_follow_to_another_server(
    opened: Server, visitor: Visitor, name: str, nowhere: str
) -> None:
    put(opened, name, url=nowhere, token="tell-nobody")
    visitor.get(f"/ui/targets/{name}")
    answer = visitor.post(f"/ui/targets/{name}", {"url": "http://127.0.0.2:9"})
    assert answer.status_code == 422
    assert re.search(r'<p id="h-token" class="help">the URL is another server', answer.text)


def test_a_wake_url_that_is_left_as_it_is_shown_stays(
    opened: Server, visitor: Visitor, name: str, nowhere: str
) -> None:
    put(opened, name, url=nowhere, wake={"url": f"{nowhere}/secret-path", "method": "PUT"})
    page = visitor.get(f"/ui/targets/{name}")
    assert "secret-path" not in page
    shown = {"wake_url": f"{nowhere}/…", "wake_method": "PUT"}
    visitor.do(f"/ui/targets/{name}", {"url": nowhere, "slots": "7", **shown})
    assert read(opened, name)["slots"] == 7
    assert "was not reached" in visitor.do(f"/ui/targets/{name}/wake")
    # Nobody has it any more once it is removed, so there is no button that would put back something else.
    assert "Put it back" not in visitor.do(f"/ui/targets/{name}/delete")


def test_names_that_a_target_cannot_have_are_refused(visitor: Visitor, nowhere: str) -> None:
    visitor.get("/ui/targets/+new")
    for name in ("", "echo", "bad name", "<script>", "x" * 200):
        answer = visitor.post("/ui/targets/+new", {"name": name, "url": nowhere})
        assert answer.status_code == 422
        assert re.search(r'id="f-name"[^>]*aria-invalid="true"', answer.text)
        assert "<script>x" not in answer.text
    for path in ("nothing-of-this-name", "bad%20name"):
        visitor.get(f"/ui/targets/{path}", 404)
        assert visitor.post(f"/ui/targets/{path}/delete").status_code == 404


def test_who_may_only_read_is_offered_nothing_and_may_do_nothing(
    guarded: Server, stranger: Visitor, nowhere: str
) -> None:
    with guarded.client() as http:
        assert http.put("/targets/theirs", json={"url": nowhere, "wake": {"url": nowhere}}).is_success
        try:
            stranger.sign_in(guarded.key("default", "admin:read"))
            page = stranger.get("/ui/targets")
            assert "theirs" in page
            for words in ("Test now", "Wake now", "Add a target"):
                assert words not in page
            assert "<input id=" not in stranger.get("/ui/targets/theirs").split('id="live"')[1]
            assert stranger.http.get("/ui/targets/+new").status_code == 403
            for action in ("", "/wake", "/probe", "/delete"):
                assert stranger.post(f"/ui/targets/theirs{action}", {}).status_code == 403
        finally:
            assert http.delete("/targets/theirs").status_code == 204


def test_a_machine_that_keeps_failing_says_how_and_needs_a_person(
    opened: Server, visitor: Visitor, name: str
) -> None:
    cut_short = {"kind": "cut", "after": 1, "path": "/api/chat"}
    with FakeOllama(models=["flaky"], faults=[cut_short]) as flaky:
        put(opened, name, url=flaky.url)
        wait_until(lambda: read(opened, name)["state"] == "awake")
        asked = {"kind": "chat", "model": "flaky", "target": name, "max_attempts": 1}
        for _ in range(5):
            body = {**asked, "messages": [{"role": "user", "content": "one two three"}]}
            assert httpx.post(f"{opened.url}/jobs", json=body).is_success
        wait_until(lambda: read(opened, name)["breaker"] == "open")
        # That it still tells of its models takes nothing of this away.
        asked_again = httpx.post(f"{opened.url}/targets/{name}/probe").json()
        assert (asked_again["state"], asked_again["warning"]) == ("awake", "answer_cut_short")
        page = tile(visitor.get("/ui/targets"), name)
        assert "▲ degraded" in page
        assert "Last trouble answer_cut_short" in page
        wait_until(lambda: f"Target {name} keeps failing (answer_cut_short)" in text_of(visitor.get("/ui")))


def test_a_machine_that_answers_with_errors_is_named_but_given_no_pause(
    opened: Server, visitor: Visitor, name: str
) -> None:
    fails = {"kind": "error", "status": 500, "path": "/api/chat"}
    with FakeOllama(models=["erring"], faults=[fails]) as erring:
        put(opened, name, url=erring.url)
        wait_until(lambda: read(opened, name)["state"] == "awake")
        for _ in range(6):
            asked = {"model": "erring", "messages": [{"role": "user", "content": "one"}], "stream": False}
            assert httpx.post(f"{opened.url}/api/chat", json=asked).status_code == 500
        target = read(opened, name)
        assert (target["breaker"], target["warning"]) == ("closed", "target_error: HTTP 500")
        assert "Last trouble target_error: HTTP 500" in tile(visitor.get("/ui/targets"), name)
        keeps_failing = f"Target {name} keeps failing (target_error: HTTP 500)."
        wait_until(lambda: keeps_failing in text_of(visitor.get("/ui")))
