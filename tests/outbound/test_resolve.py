"""Name lookup: shared while under way, bounded, and never in the way of other names."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.outbound.resolve import ThreadResolver
from tests.patience import turn_of_the_loop, until


class SlowNames:
    """Stands in for the system's resolver: names wait until they are released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released = threading.Event()
        self.missing_in_the_end = False

    def __call__(self, host: str, port: object, **_: object) -> list[Any]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.released.wait(100)
        if host.startswith("missing") or (host.startswith("slow") and self.missing_in_the_end):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))
            for address in ("192.0.2.1", "192.0.2.1")
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield slow
    slow.released.set()


async def test_the_system_resolves_localhost() -> None:
    assert set(await ThreadResolver()("localhost")) <= {"127.0.0.1", "::1"}


async def test_a_link_local_address_keeps_the_scope_without_which_it_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", sockaddr)
        for sockaddr in (("fe80::1", 0, 0, 2), ("2001:db8::1", 0, 0, 0))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert await ThreadResolver()("machine.local") == ["fe80::1%2", "2001:db8::1"]


async def test_an_unknown_name_is_an_os_error(names: SlowNames) -> None:
    with pytest.raises(OSError, match="no such name"):
        await ThreadResolver()("missing.example")


async def test_names_that_hang_do_not_keep_others_waiting(names: SlowNames) -> None:
    resolve = ThreadResolver()
    hanging = [asyncio.create_task(resolve(f"slow{number}.example")) for number in range(40)]
    async with asyncio.timeout(5):
        assert await resolve("quick.example") == ["192.0.2.1"]
    assert not any(task.done() for task in hanging)
    names.released.set()
    assert await asyncio.gather(*hanging) == [["192.0.2.1"]] * 40


async def test_all_who_ask_for_a_name_at_once_share_one_lookup(names: SlowNames) -> None:
    resolve = ThreadResolver()
    waiting = [asyncio.create_task(resolve("slow.example")) for _ in range(50)]
    await until(lambda: names.asked)
    waiting[0].cancel()
    names.released.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [["192.0.2.1"]] * 49
    assert names.asked == ["slow.example"]
    await resolve("slow.example")
    assert names.asked == ["slow.example"] * 2  # nothing is cached


async def test_a_failed_lookup_that_nobody_waits_for_is_forgotten_quietly(names: SlowNames) -> None:
    resolve = ThreadResolver()
    names.released.clear()
    abandoned = asyncio.create_task(resolve("missing.example"))
    await turn_of_the_loop()
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    with pytest.raises(OSError, match="no such name"):
        await resolve("missing.example")


async def test_a_hundred_and_forty_names_that_hang_do_not_use_up_the_places_of_all_others(
    names: SlowNames,
) -> None:
    resolve = ThreadResolver(slow_seconds=0.05)
    hanging = [asyncio.create_task(resolve(f"slow{number}.example")) for number in range(140)]
    await turn_of_the_loop()
    async with asyncio.timeout(60):
        assert await resolve("quick.example") == ["192.0.2.1"]
    assert not any(task.done() for task in hanging)
    names.released.set()
    assert await asyncio.gather(*hanging) == [["192.0.2.1"]] * 140


async def test_a_name_that_was_found_before_is_found_however_many_hang(names: SlowNames) -> None:
    resolve = ThreadResolver(young=4, threads=8, slow_seconds=0.05)
    await resolve("quick.example")
    hanging = [asyncio.create_task(resolve(f"slow{number}.example")) for number in range(100)]
    await until(lambda: len(names.asked) >= 9)
    async with asyncio.timeout(60):
        assert await resolve("quick.example") == ["192.0.2.1"]
        # No more threads than there may be, whoever waits for them.
        assert len([name for name in names.asked if name.startswith("slow")]) == 8
    names.released.set()
    await asyncio.gather(*hanging)


async def test_a_name_that_took_long_and_was_not_found_is_left_alone_for_a_moment(names: SlowNames) -> None:
    resolve = ThreadResolver(young=1, slow_seconds=0.01)
    names.missing_in_the_end = True
    waiting = asyncio.create_task(resolve("slow.example"))
    await until(lambda: names.asked)
    # It took long: the place of the young ones is free again.
    await until(lambda: not resolve._strangers.young.locked())
    async with asyncio.timeout(60):
        names.released.set()
        with pytest.raises(OSError, match="no such name"):
            await waiting
        with pytest.raises(OSError, match="did not answer"):
            await resolve("slow.example")
        assert await resolve("quick.example") == ["192.0.2.1"]
    assert names.asked.count("slow.example") == 1
