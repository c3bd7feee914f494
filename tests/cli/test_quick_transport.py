"""Requests over the standard library do as those over httpx."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import foreman_client as fc
from app.cli.quick_transport import QuickTransport, chosen
from foreman_client.errors import ForemanError
from tests.client.wire_stub import Answer, problem, running_stub
from tests.conftest import free_port


def client(url: str, timeout: float = 30.0) -> "fc.Foreman":
    return fc.Foreman(url, timeout=timeout, retry_seconds=0, transport_class=QuickTransport)


def test_paths_queries_bodies_and_headers_arrive_as_they_were_meant() -> None:
    with running_stub() as stub, client(f"{stub.url}/below") as foreman:
        stub.answers(Answer(200, {"ok": True}, {"X-Some": "Thing"}))
        reply = foreman.request(
            "PUT", "/queues/grün?x#y", query={"a": "b c&d", "e": ["f", "g"]}, body={"n": 1}
        )
        assert (reply.status, reply.headers["x-some"], reply.json()) == (200, "Thing", {"ok": True})
        [seen] = stub.seen
        assert seen.method == "PUT"
        assert seen.path == "/below/queues/gr%C3%BCn%3Fx%23y?a=b+c%26d&e=f&e=g"
        assert seen.json() == {"n": 1}
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["user-agent"].startswith("foreman-client/")


def test_refusals_are_the_typed_errors() -> None:
    with running_stub() as stub, client(stub.url) as foreman:
        stub.answers(problem(409, "key_busy", existing_job_id="01J"))
        with pytest.raises(fc.KeyBusy):
            foreman.submit("x")


def test_nobody_there_is_told_from_somebody_who_hung_up() -> None:
    with client(f"http://127.0.0.1:{free_port()}") as foreman, pytest.raises(fc.Unreachable) as away:
        foreman.get("01J")
    assert not away.value.maybe_received
    assert "no answer from http://127.0.0.1:" in str(away.value)
    with running_stub() as stub, client(stub.url) as foreman:
        stub.answers(Answer(cut=True))
        with pytest.raises(fc.Unreachable) as cut:
            foreman.get("01J")
    assert cut.value.maybe_received
    with client("http://no-such-host.invalid") as foreman, pytest.raises(fc.Unreachable):
        foreman.get("01J")


@contextmanager
def saying(*pieces: bytes) -> Iterator[str]:
    """Somebody who answers one connection with these bytes, whatever is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\nshort",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_said_so(answer: bytes) -> None:
    with saying(answer) as url, client(url) as foreman, pytest.raises(ForemanError):
        foreman.call("GET", "/queues")


def test_somebody_who_says_nothing_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with client(url, timeout=0.2) as foreman, pytest.raises(fc.Unreachable, match="timed out") as silent:
            foreman.get("01J")
    assert silent.value.maybe_received


def test_a_key_that_cannot_be_sent_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("fmn_topsec\nX: y", "fmn_topsec…"):
        monkeypatch.setenv("FOREMAN_API_KEY", key)
        with running_stub() as stub, client(stub.url) as foreman:
            stub.answers(Answer(200, {}))
            with pytest.raises(ForemanError) as refused:
                foreman.call("GET", "/queues")
        assert "FOREMAN_API_KEY" in str(refused.value)
        assert "topsec" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "is_quick"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080/prefix", True),
        ("http://jobs.internal", True),
        ("https://jobs.internal", False),
        ("http://me:secret@jobs.internal", False),
        ("http://grün.example", False),
        ("http://h:99999", False),
        ("http://h:x", False),
        ("http://", False),
        ("ftp://h", False),
        ("nonsense", False),
        ("http://h/?a=b", False),
    ],
)
def test_it_is_chosen_where_it_is_enough(monkeypatch: pytest.MonkeyPatch, url: str, is_quick: bool) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert (chosen(url) is QuickTransport) is is_quick
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    assert chosen(url) is None
