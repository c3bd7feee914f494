"""A relay does what a fault says of it, and is a plain wire again afterwards."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.network import Network, Relay
from tests.patience import wait_until


@pytest.fixture
def relay() -> Iterator[Relay]:
    """Leads to somebody who says everything back."""
    network = Network()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        yield network.relay("wire", server.getsockname()[1])
        network.close()


def _echo(server: socket.socket) -> None:
    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


def connect(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), 60)


def hears_itself(connection: socket.socket, said: bytes = b"hello") -> bool:
    connection.sendall(said)
    return connection.recv(len(said)) == said


def is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def cuts_whoever_comes(relay: Relay) -> bool:
    """Maybe as soon as he is connected."""
    try:
        with connect(relay) as connection:
            return is_cut(connection)
    except ConnectionResetError:
        return True


def refuses(relay: Relay) -> bool:
    try:
        connect(relay).close()
    except ConnectionRefusedError:
        return True
    return False


def test_bytes_pass_and_so_does_the_end(relay: Relay) -> None:
    with connect(relay) as connection:
        assert hears_itself(connection)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_cut_resets_what_there_is_and_whoever_comes(relay: Relay) -> None:
    with connect(relay) as connection:
        assert hears_itself(connection)
        relay.cuts()
        assert is_cut(connection)
    assert cuts_whoever_comes(relay)
    relay.passes()
    with connect(relay) as connection:
        assert hears_itself(connection)


def test_a_wire_that_refuses_has_nobody_listening(relay: Relay) -> None:
    relay.refuses()
    wait_until(lambda: refuses(relay))
    port = relay.port
    relay.passes()
    assert relay.port == port
    with connect(relay) as connection:
        assert hears_itself(connection)


def test_a_half_open_connection_says_nothing_until_the_wire_is_back_and_then_is_reset(relay: Relay) -> None:
    with connect(relay) as old:
        assert hears_itself(old)
        relay.swallows()
        with connect(relay) as new:
            for connection in (old, new):
                connection.sendall(b"is anybody there?")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                connection.settimeout(60)
            relay.passes()
            assert is_cut(old)
            assert is_cut(new)
    with connect(relay) as connection:
        assert hears_itself(connection)


def test_a_far_wire_is_slow_and_loses_nothing(relay: Relay) -> None:
    relay.delays(0.05)
    with connect(relay) as connection:
        assert hears_itself(connection)
        assert hears_itself(connection, b"again")


def test_who_is_not_there_is_a_reset(relay: Relay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[1]
    assert cuts_whoever_comes(relay._network.relay("to nobody", nobody))
