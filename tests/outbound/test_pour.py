"""A body that is poured: taken where the socket is read, chunk by chunk, with all that may go wrong."""

import asyncio

import pytest

from app.outbound.errors import AnswerCutError, OutboundProtocolError, OutboundTimeout
from tests.outbound.conftest import MakeClient
from tests.outbound.receivers import Receiver, Visit, once
from tests.patience import until

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_chunks_are_taken_as_they_are_sent_and_the_connection_is_kept(make_client: MakeClient) -> None:
    heard = asyncio.Event()

    async def script(visit: Visit) -> None:
        while await visit.read_request():
            await visit.send(HEAD)
            for word in (b"one", b"two", b"six"):
                await visit.send(b"3\r\n" + word + b"\r\n")
                await heard.wait()
                heard.clear()
            await visit.send(b"0\r\n\r\n")

    words: list[bytes] = []

    def take(chunk: bytes) -> None:
        words.append(chunk)
        heard.set()

    async with Receiver(script) as receiver:
        client = make_client()
        for _ in range(2):
            async with client.stream("POST", receiver.url, idle_seconds=5) as answer:
                await answer.pour(take)
        assert words == [b"one", b"two", b"six"] * 2
        assert receiver.accepted == 1


async def test_what_came_with_the_head_is_taken_as_well(make_client: MakeClient) -> None:
    async with Receiver(once(HEAD + b"3\r\none\r\n0\r\n\r\n")) as receiver:
        words: list[bytes] = []
        async with make_client().stream("GET", receiver.url, idle_seconds=5) as answer:
            await answer.pour(words.append)
        assert b"".join(words) == b"one"


async def test_silence_ends_it(make_client: MakeClient) -> None:
    for said in (HEAD, HEAD + b"3\r\none\r\n"):
        async with Receiver(once(said)) as receiver:
            with pytest.raises(OutboundTimeout, match=r"nothing came for 0\.1 s"):
                async with make_client().stream("GET", receiver.url, idle_seconds=0.1) as answer:
                    await answer.pour(lambda _: None)
            await until(lambda: receiver.hang_ups == 1)


async def test_silence_is_counted_from_the_last_word(make_client: MakeClient) -> None:
    heard = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(HEAD)
        for _ in range(3):
            await visit.send(b"3\r\none\r\n")
            await heard.wait()
            heard.clear()
        await visit.send(b"0\r\n\r\n")

    clock = asyncio.get_running_loop().time
    taken: list[float] = []
    counted: list[float] = []

    async with (
        Receiver(script) as receiver,
        make_client().stream("GET", receiver.url, idle_seconds=600) as answer,
    ):

        def take(_chunk: bytes) -> None:
            taken.append(clock())
            counted.append(answer._connection._heard_at)
            heard.set()

        await answer.pour(take)
    assert counted[2] >= taken[1]


@pytest.mark.parametrize(
    ("said", "problem"),
    [(HEAD + b"3\r\none\r\n", AnswerCutError), (HEAD + b"3\r\none\r\nno chunk", OutboundProtocolError)],
)
async def test_what_came_before_the_trouble_is_taken(
    make_client: MakeClient, said: bytes, problem: type[Exception]
) -> None:
    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(said)
        visit.writer.close()

    async with Receiver(script) as receiver:
        words: list[bytes] = []
        with pytest.raises(problem):
            async with make_client().stream("GET", receiver.url, idle_seconds=5) as answer:
                await answer.pour(words.append)
        assert words == [b"one"]


async def test_what_the_taker_raises_is_raised_where_it_waits_and_hangs_up(make_client: MakeClient) -> None:
    def take(chunk: bytes) -> None:
        raise ValueError(chunk)

    async with Receiver(once(HEAD + b"3\r\none\r\n")) as receiver:
        with pytest.raises(ValueError, match="one"):
            async with make_client().stream("GET", receiver.url, idle_seconds=5) as answer:
                await answer.pour(take)
        await until(lambda: receiver.hang_ups == 1)


async def test_cancelled_it_takes_nothing_more(make_client: MakeClient) -> None:
    going_on = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(HEAD + b"3\r\none\r\n")
        await going_on.wait()
        await visit.send(b"3\r\ntwo\r\n")
        await visit.wait_for_hang_up()

    async with Receiver(script) as receiver:
        words: list[bytes] = []

        async def pouring() -> None:
            async with make_client().stream("GET", receiver.url, idle_seconds=5) as answer:
                await answer.pour(words.append)

        task = asyncio.create_task(pouring())
        await until(lambda: words)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        going_on.set()
        await until(lambda: receiver.hang_ups == 1)
        assert words == [b"one"]
