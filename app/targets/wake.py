"""Waking a machine: a magic packet on the local network, or a call to somebody who wakes it."""

import asyncio
import re
import socket

from app.outbound.client import GuardedClient
from app.outbound.errors import OutboundError
from app.targets.config import WakeAction

_CALL_SECONDS = 15.0


class WakeError(Exception):
    """It could not even be tried; the message is for the operator."""


def magic_packet(mac: str) -> bytes:
    """Six times 0xff, then the address sixteen times."""
    return b"\xff" * 6 + bytes.fromhex(re.sub("[:-]", "", mac)) * 16


async def wake(action: WakeAction, client: GuardedClient) -> None:
    """Try once. Whether it helped shows when the target answers. Raises WakeError."""
    if action.mac is not None:
        await _send_packet(action.mac, action.address, action.port)
    elif action.url is not None:
        await _call(action.method, action.url, client)


async def _send_packet(mac: str, address: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as sender:
            sender.setblocking(False)
            if family == socket.AF_INET:
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            # One datagram never waits; uvloop has no sock_sendto.
            sender.sendto(magic_packet(mac), where)
    except (OSError, UnicodeError) as problem:
        words = getattr(problem, "strerror", None) or str(problem)
        raise WakeError(f"no packet could be sent to {address}: {words}") from problem


async def _call(method: str, url: str, client: GuardedClient) -> None:
    try:
        answer = await client.request(method, url, deadline_seconds=_CALL_SECONDS, max_response_bytes=1024)
    except OutboundError as problem:
        raise WakeError(f"the wake URL was not reached: {problem.reason}") from problem
    if answer.status >= 400:
        raise WakeError(f"the wake URL answered {answer.status}")
