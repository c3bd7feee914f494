"""The protocol with the short way beside the ordinary one: which of them a request takes, and how it ends.

No socket and no database: what is taken is remembered, and answered when the test says so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.api.edge import Edge
from app.config import Settings
from app.loops.batcher import Tell
from app.main import create_app
from app.server import direct_submissions
from app.server.direct_submissions import DirectSubmissions, ShortWay, with_short_way
from app.server.protocol import PacedProtocol, paced
from app.store.idempotency import Receipt
from tests.patience import turn_of_the_loop, until

BODY = b'{"kind":"noop"}'
HEAD = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY)
RECEIPT = Receipt(["01ARZ3NDEKTSV4RRFFQ69G5FAV"])


class Pieces(asyncio.Transport):
    """A connection without a network: what is written, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    resume_reading = pause_reading


@dataclass
class Talk:
    """One connection. `ordinary` are the bodies of what went the ordinary way, which answers with a 204."""

    protocol: PacedProtocol
    transport: Pieces
    taken: list[Tell[Receipt]] = field(default_factory=list)
    ordinary: list[bytes] = field(default_factory=list)

    def say(self, *parts: bytes) -> None:
        for part in parts:
            self.protocol.data_received(part)

    @property
    def statuses(self) -> list[int]:
        return [int(each[9:12]) for each in self.transport.written if each.startswith(b"HTTP/1.1 ")]


@pytest.fixture(scope="module")
def edge() -> Edge:
    return create_app(Settings(database_url="postgresql://nowhere/none", auth="off"))


def talking(edge: Edge, test: Callable[[Talk], Awaitable[None]]) -> None:
    async def run() -> None:
        async def app(_scope: Scope, receive: Receive, send: Send) -> None:
            body, more = b"", True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            talk.ordinary.append(body)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        intake = edge.app.state.foreman.intake
        kind = with_short_way(paced(1000, 1000), DirectSubmissions(edge, intake, 64))
        protocol = kind(config, ServerState(), {}, asyncio.get_running_loop())
        talk = Talk(protocol, Pieces())
        intake._plain.add = lambda _, tell: talk.taken.append(tell)
        protocol.connection_made(talk.transport)
        await test(talk)
        talk.transport.close()
        protocol.connection_lost(None)

    asyncio.run(run())


def test_a_whole_request_goes_the_short_way_and_is_answered_in_one_write(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        for n in range(1, 4):
            talk.say(HEAD + BODY)
            assert len(talk.taken) == n
            assert len(talk.transport.written) == n - 1
            talk.taken[-1](RECEIPT)
            assert len(talk.transport.written) == n
        assert talk.statuses == [202] * 3
        assert not talk.ordinary

    talking(edge, test)


def test_a_head_waits_for_its_body(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD)
        assert not talk.taken
        talk.say(BODY)
        assert len(talk.taken) == 1
        talk.taken[0](RECEIPT)
        assert (talk.statuses, talk.ordinary) == ([202], [])

    talking(edge, test)


@pytest.mark.parametrize("parts", [(BODY[:3], BODY[3:]), (BODY[:1], BODY[1:2], BODY[2:])])
def test_a_body_in_parts_goes_the_ordinary_way(edge: Edge, parts: tuple[bytes, ...]) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD, *parts)
        await until(lambda: talk.ordinary)
        assert (talk.ordinary, talk.taken) == ([BODY], [])
        # And the next one is free to go either way.
        await until(lambda: talk.statuses == [204])
        talk.say(HEAD + BODY)
        assert len(talk.taken) == 1

    talking(edge, test)


def test_a_head_whose_body_does_not_come_is_not_held_for_long(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD)
        await until(lambda: talk.protocol.cycle is not None)
        talk.say(BODY)
        await until(lambda: talk.ordinary)
        assert (talk.ordinary, talk.taken) == ([BODY], [])

    talking(edge, test)


@pytest.mark.parametrize(
    "header", [b"expect: 100-continue", b"prefer: wait=1", b"connection: close", b"content-length: 15"]
)
def test_a_head_that_says_anything_unusual_is_not_held_at_all(edge: Edge, header: bytes) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD[:-2] + header + b"\r\n\r\n")
        # At once: either it is being answered, or it was refused.
        assert talk.protocol.cycle is not None or talk.statuses == [400]

    talking(edge, test)


def test_when_the_server_ends_a_head_that_is_held_may_still_have_its_body(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_submissions, "HELD_SECONDS", 1000)

    async def test(talk: Talk) -> None:
        talk.say(HEAD)
        assert talk.protocol.cycle is None
        talk.protocol.shutdown()
        assert not talk.transport.is_closing()
        talk.say(BODY)
        await until(talk.transport.is_closing)
        assert talk.ordinary == [BODY]
        assert b"connection: close\r\n" in b"".join(talk.transport.written)

    talking(edge, test)


def test_when_the_server_ends_what_was_taken_is_answered_and_then_it_closes(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD + BODY)
        talk.protocol.shutdown()
        assert not talk.transport.is_closing()
        talk.taken[0](RECEIPT)
        assert talk.transport.is_closing()
        [answer] = talk.transport.written
        assert b"\r\nconnection: close\r\n" in answer

    talking(edge, test)


def test_who_comes_when_it_ends_already_goes_the_ordinary_way(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD + BODY)
        talk.protocol.shutdown()
        talk.say(HEAD + BODY)
        assert len(talk.taken) == 1

    talking(edge, test)


def test_what_comes_behind_waits_for_the_answer(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD + BODY, HEAD + BODY, HEAD)
        talk.say(BODY)
        assert len(talk.taken) == 1
        talk.taken[0](RECEIPT)
        await until(lambda: len(talk.statuses) == 3)
        assert talk.statuses == [202, 204, 204]
        assert talk.ordinary == [BODY, BODY]

    talking(edge, test)


def test_a_client_that_does_not_read_goes_the_ordinary_way_which_waits_for_it(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.protocol.pause_writing()
        talk.say(HEAD + BODY)
        assert not talk.taken
        await turn_of_the_loop()
        talk.protocol.resume_writing()
        await until(lambda: talk.statuses == [204])

    talking(edge, test)


def test_whoever_left_is_not_written_to(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD + BODY)
        talk.transport.close()
        talk.protocol.connection_lost(None)
        talk.taken[0](RECEIPT)
        assert not talk.transport.written

    talking(edge, test)


def test_whoever_leaves_between_head_and_body_leaves_nothing_behind(edge: Edge) -> None:
    async def test(talk: Talk) -> None:
        talk.say(HEAD)
        talk.transport.close()
        talk.protocol.connection_lost(None)
        assert isinstance(talk.protocol, ShortWay)
        assert (talk.protocol._held, talk.protocol._held_until) == (b"", None)

    talking(edge, test)
