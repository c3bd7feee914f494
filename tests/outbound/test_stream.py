"""Answers that are read as they come, as those of targets are: connections are used again only where safe."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.outbound.client import GuardedClient
from app.outbound.errors import (
    AnswerCutError,
    ConnectionDropped,
    OutboundRefused,
    OutboundTimeout,
    OutboundUnreachable,
)
from app.outbound.guard import ANY_ADDRESS, AddressPolicy
from tests.outbound.conftest import MakeClient
from tests.outbound.receivers import OK, Receiver, Visit, once
from tests.patience import until

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


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_chunks_come_as_they_are_sent(make_client: MakeClient) -> None:
    heard = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(HEAD)
        for word in (b"one", b"two", b"six"):
            await visit.send(b"3\r\n" + word + b"\r\n")
            await heard.wait()
            heard.clear()
        await visit.send(b"0\r\n\r\n")
        await visit.wait_for_hang_up()

    async with Receiver(script) as receiver:
        words = []
        async with make_client().stream("POST", receiver.url, idle_seconds=5) as answer:
            assert (answer.status, answer.header("transfer-encoding")) == (200, "chunked")
            async for chunk in answer.chunks():
                words.append(chunk)
                heard.set()
        assert words == [b"one", b"two", b"six"]


async def test_a_stream_does_not_pass_the_guard(make_client: MakeClient, connects: list[object]) -> None:
    async def loopback(host: str) -> list[str]:
        return ["127.0.0.1"]

    client = make_client(AddressPolicy(), resolver=loopback)
    async with Receiver() as receiver:
        for host in ("127.0.0.1", "hooks.example"):
            with pytest.raises(OutboundRefused):
                await ask(client, f"http://{host}:{receiver.port}/")
        assert connects == []


async def test_a_target_may_be_anywhere_even_where_no_caller_may_point(make_client: MakeClient) -> None:
    for address in ("127.0.0.1", "169.254.169.254", "10.0.0.1", "fe80::1%1"):
        assert ANY_ADDRESS.refusal(address) is None
    async with Receiver() as receiver:
        assert await ask(make_client(ANY_ADDRESS), f"http://localhost:{receiver.port}/") == b"ok"


async def test_silence_ends_a_stream_before_and_after_its_head(make_client: MakeClient) -> None:
    for said in (b"", HEAD, HEAD + b"3\r\none\r\n"):
        async with Receiver(once(said)) as receiver:
            with pytest.raises(OutboundTimeout, match=r"nothing came for 0\.1 s"):
                async with make_client().stream("GET", receiver.url, idle_seconds=0.1) as answer:
                    assert b"".join([chunk async for chunk in answer.chunks()]) == b"never whole"
            await until(lambda: receiver.hang_ups == 1)


async def test_a_cancelled_stream_hangs_up_and_gives_its_place_back(make_client: MakeClient) -> None:
    async with Receiver(once(HEAD + b"3\r\none\r\n")) as receiver:
        client = make_client(max_connections=1)
        reading = asyncio.create_task(ask(client, receiver.url))
        await until(lambda: len(receiver.requests) == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until(lambda: receiver.hang_ups == 1)
        async with client.stream("GET", receiver.url, idle_seconds=5) as answer:
            assert answer.status == 200


async def test_a_stream_keeps_its_place_until_it_is_left(make_client: MakeClient) -> None:
    async with Receiver() as receiver:
        client = make_client(max_connections=1)
        async with client.stream("GET", receiver.url, idle_seconds=5):
            with pytest.raises(OutboundUnreachable):
                await client.request("GET", receiver.url, deadline_seconds=0.1, max_response_bytes=10)
        answer = await client.request("GET", receiver.url, deadline_seconds=5, max_response_bytes=10)
        assert answer.body == b"ok"


async def test_a_peer_that_sends_faster_than_it_is_read_has_to_wait(make_client: MakeClient) -> None:
    stands_still = asyncio.Event()
    sent = 0

    async def script(visit: Visit) -> None:
        nonlocal sent
        await visit.read_request()
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n")
        while sent < 268435456:
            visit.writer.write(bytes(65536))
            sent += 65536
            try:
                async with asyncio.timeout(0.5):
                    await visit.writer.drain()
            except TimeoutError:
                stands_still.set()
                await visit.writer.drain()

    async with (
        Receiver(script) as receiver,
        make_client().stream("GET", receiver.url, idle_seconds=5) as answer,
    ):
        async with asyncio.timeout(60):
            await stands_still.wait()  # because nobody reads
        assert sent < 128 * 2**20
        size = 0
        async for chunk in answer.chunks():
            assert len(chunk) < 2**20
            size += len(chunk)
        assert size == 268435456


async def test_framing_that_never_comes_to_a_body_is_cut_off(make_client: MakeClient) -> None:
    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(HEAD + b"1;")
        while True:
            await visit.send(b"x" * 10_000)

    async with Receiver(script) as receiver:
        answer = await make_client().request("GET", receiver.url, deadline_seconds=30, max_response_bytes=100)
        assert (answer.body, answer.truncated) == (b"", True)


@pytest.mark.parametrize("replayable", [True, False])
async def test_a_request_is_sent_again_only_if_it_may_be(replayable: bool, make_client: MakeClient) -> None:
    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(OK)
        if visit.receiver.accepted == 1:
            await visit.read_request()  # and hangs up

    async def post(client: GuardedClient) -> bytes:
        async with client.stream("POST", receiver.url, idle_seconds=5, replayable=replayable) as answer:
            return await answer.read(10)

    async with Receiver(script) as receiver:
        client = make_client()
        assert await post(client) == b"ok"
        if replayable:
            assert await post(client) == b"ok"
        else:
            with pytest.raises(ConnectionDropped):
                await post(client)
        assert len(receiver.requests) == (3 if replayable else 2)


async def test_whoever_asked_twice_in_vain_is_told_so(make_client: MakeClient) -> None:
    async def script(visit: Visit) -> None:
        await visit.read_request()
        if visit.receiver.accepted == 1:
            await visit.send(OK)
            await visit.read_request()  # and hangs up

    async with Receiver(script) as receiver:
        client = make_client()
        twice = []
        async with client.stream("GET", receiver.url, idle_seconds=5) as answer:
            assert await answer.read(10) == b"ok"
        for _ in range(2):
            with pytest.raises(ConnectionDropped) as dropped:
                await client.stream("GET", receiver.url, idle_seconds=5).__aenter__()
            twice.append(dropped.value.was_sent_twice)
        assert twice == [True, False]
        assert len(receiver.requests) == 4
