"""Whoever connects and says nothing takes nobody's place."""

import resource
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import httpx
import pytest

from app.server.connection_limit import ConnectionLimit, Droppable, allowed
from app.telemetry import CONNECTIONS_DROPPED
from tests.conftest import MakeServer, Server
from tests.patience import wait_until


@pytest.mark.parametrize(
    ("files", "wanted", "left"),
    [
        (400, 20_000, 300),
        (1024, 20_000, 768),
        (20_000, 20_000, 18_976),
        (1_048_576, 20_000, 20_000),
        (1024, 40, 40),
        (4, 20_000, 8),
        (resource.RLIM_INFINITY, 20_000, 20_000),
    ],
)
def test_some_files_are_never_for_callers(
    monkeypatch: pytest.MonkeyPatch, files: int, wanted: int, left: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert allowed(wanted) == left


@dataclass(eq=False)
class Caller:
    order: tuple[bool, float] | None
    hung_up: bool = False

    def drop_order(self) -> tuple[bool, float] | None:
        return self.order

    def hang_up(self) -> None:
        self.hung_up = True


def dropped() -> float:
    return CONNECTIONS_DROPPED._value.get()  # type: ignore[no-any-return]


def test_strangers_go_first_and_of_them_who_has_been_silent_for_longest() -> None:
    known = [Caller((True, float(moment))) for moment in range(30)]
    strangers = [Caller((False, 100.0 + moment)) for moment in range(9)]
    asking = [Caller(None) for _ in range(2)]
    limit = ConnectionLimit(40)
    before = dropped()
    everybody: set[Droppable] = {*known, *strangers[1:], *asking}
    limit.enforce(everybody)
    assert len(everybody) == 40
    everybody.add(strangers[0])
    limit.enforce(everybody)
    assert [each for each in (*known, *strangers, *asking) if each.hung_up] == strangers[:2], "a twentieth"
    assert everybody == {*known, *strangers[2:], *asking}
    assert dropped() == before + 2
    everybody = {*known, *asking, *(Caller(None) for _ in range(9))}
    limit.enforce(everybody)
    assert [each for each in known if each.hung_up] == known[:2]


def test_while_all_others_are_being_answered_the_newcomer_goes() -> None:
    newcomer = Caller((False, 1.0))
    asking: set[Droppable] = {Caller(None) for _ in range(20)}
    everybody = {newcomer, *asking}
    ConnectionLimit(20).enforce(everybody)
    assert newcomer.hung_up
    assert everybody == asking
    ConnectionLimit(19).enforce(everybody)
    assert everybody == asking, "none of them is hung up on in the middle of its answer"


def metric(server: Server, name: str) -> float:
    with server.client() as admin:
        [line] = [each for each in admin.get("/metrics").text.splitlines() if each.startswith(f"{name} ")]
    return float(line.split()[1])


HALF_HEAD = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_BODY = b'POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n{"kind"'
ROOM = 40


def test_ten_times_as_many_silent_sockets_as_there_is_room_for(make_server: MakeServer) -> None:
    """Everybody who asks is answered, who listens hears, and who keeps a connection keeps it."""
    server = make_server(FOREMAN_AUTH="on", FOREMAN_MAX_CONNECTIONS=str(ROOM))
    with ExitStack() as stack:
        admin = stack.enter_context(server.client())
        job_id = admin.post("/jobs", json={"kind": "render"}).json()["job_id"]
        path = f"/jobs/{job_id}/events"
        listening = stack.enter_context(
            httpx.stream(
                "GET",
                server.url + path,
                headers={"Authorization": f"Bearer {server.admin_key}", "Accept": "text/event-stream"},
                timeout=100,
            )
        )
        heard = listening.iter_lines()
        assert next(line for line in heard if line.startswith("event:")) == "event: queued"
        held: list[socket.socket] = []
        for number in range(10 * ROOM):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            held.append(silent)
            with suppress(ConnectionError):
                silent.sendall((b"", HALF_HEAD, HALF_BODY)[number % 3])
            if number % ROOM == 0:
                # By the connection that is kept, and by a new one.
                assert admin.get("/jobs").status_code == 200
                with server.client() as newcomer:
                    assert newcomer.get("/jobs").status_code == 200
        assert metric(server, "foreman_connections_dropped_total") >= 8 * ROOM
        assert metric(server, "foreman_connections_open") <= ROOM
        wait_until(lambda: sum(map(is_open, held)) <= ROOM)
        assert admin.post(f"/jobs/{job_id}/cancel").status_code == 200
        assert next(line for line in heard if line.startswith("event:")) == "event: cancelled"
    assert server.log().count("connections.full") == 1


def is_open(wire: socket.socket) -> bool:
    wire.setblocking(False)
    try:
        # Some were told first that they need a key.
        while wire.recv(10_000):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
