"""The client for targets: connections are used again where that is safe, and only there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.outbound import ANY_ADDRESS, AnswerCutError, GuardedClient, OutboundUnreachable

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n" + SIZED
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"


class Target:
    """Gives each request the same answer; counts the connections it was asked on."""

    def __init__(self, answer: bytes, *, hangs_up: bool = False) -> None:
        self.answer = answer
        self.hangs_up = hangs_up
        self.connections = 0
        self.requests = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                writer.write(self.answer)
                await writer.drain()
                if self.hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Target"]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        async with server:
            yield self


async def ask(client: GuardedClient, url: str) -> bytes:
    async with client.stream("GET", url, idle_seconds=5) as answer:
        return await answer.read(1000)


@pytest.mark.parametrize("answer", [CHUNKED, SIZED, EARLY_HINTS])
async def test_one_connection_serves_one_request_after_the_other(answer: bytes) -> None:
    client = GuardedClient(ANY_ADDRESS)
    async with Target(answer).open() as target:
        assert [await ask(client, target.url) for _ in range(5)] == [b"hello"] * 5
        await client.aclose()
        assert (target.connections, target.requests) == (1, 5)


async def test_a_target_that_says_close_is_not_asked_again_on_that_connection() -> None:
    client = GuardedClient(ANY_ADDRESS)
    async with Target(CLOSING).open() as target:
        for _ in range(3):
            assert await ask(client, target.url) == b"hello"
        await client.aclose()
        assert target.connections == 3


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    client = GuardedClient(ANY_ADDRESS)
    async with Target(SIZED, hangs_up=True).open() as target:
        for _ in range(3):
            assert await ask(client, target.url) == b"hello"
        await client.aclose()
        assert (target.connections, target.requests) == (3, 3)


async def test_an_answer_that_is_not_read_to_its_end_is_hung_up_on() -> None:
    client = GuardedClient(ANY_ADDRESS)
    async with Target(CUT).open() as target:
        async with client.stream("GET", target.url, idle_seconds=5) as answer:
            assert answer.status == 200
        async with client.stream("GET", target.url, idle_seconds=5):
            pass
        await client.aclose()
        assert target.connections == 2


async def test_an_answer_that_breaks_off_is_told_from_one_that_ended() -> None:
    client = GuardedClient(ANY_ADDRESS)
    async with Target(CUT, hangs_up=True).open() as target:
        with pytest.raises(AnswerCutError):
            await ask(client, target.url)
    await client.aclose()


async def test_nobody_there_is_unreachable() -> None:
    client = GuardedClient(ANY_ADDRESS, connect_seconds=2)
    async with Target(SIZED).open() as target:
        url = target.url
    with pytest.raises(OutboundUnreachable):
        await ask(client, url)
    await client.aclose()
