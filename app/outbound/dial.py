"""From a URL to an open connection: resolve once, check every address, connect to one that was checked.

Nobody resolves the name a second time: the socket is given an address, and TLS is given the name to verify.
A name server that changes its answer in between changes nothing.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import certifi

from app.outbound.addresses import Address
from app.outbound.connection import Connection
from app.outbound.errors import OutboundRefused, OutboundUnreachable
from app.outbound.guard import AddressPolicy
from app.outbound.resolve import Resolver
from app.outbound.urls import OutboundUrl

_MAX_ADDRESSES_TRIED = 4
# A machine that went to sleep in mid-answer says nothing; the kernel finds out by asking.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class Dialer:
    """Opens connections that the policy allows, each within `connect_seconds`."""

    def __init__(
        self,
        policy: AddressPolicy,
        resolver: Resolver,
        ssl_context: ssl.SSLContext | None,
        connect_seconds: float,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._given_ssl_context = ssl_context
        self._connect_seconds = connect_seconds

    async def connect(self, url: OutboundUrl) -> Connection:
        """A connection to the URL's host. Raises OutboundRefused or OutboundUnreachable."""
        try:
            async with asyncio.timeout(self._connect_seconds):
                addresses = (await self.checked_addresses(url))[:_MAX_ADDRESSES_TRIED]
                for address in addresses[:-1]:
                    try:
                        # A share of the time each, so that one dead address does not use it all up.
                        async with asyncio.timeout(self._connect_seconds / len(addresses)):
                            return await self._open(address, url)
                    except OSError:  # TimeoutError is one
                        continue
                return await self._open(addresses[-1], url)
        except TimeoutError:
            raise OutboundUnreachable(f"no connection within {self._connect_seconds:g} s") from None
        except OSError as error:
            raise OutboundUnreachable(_why_unreachable(error)) from None

    async def checked_addresses(self, url: OutboundUrl) -> Sequence[Address]:
        """The addresses of the host, every one of which the policy lets pass."""
        addresses = await self._resolved(url.host) if url.address is None else [url.address]
        for address in addresses:
            reason = self._policy.refusal(address, url.host)
            if reason is not None:
                raise OutboundRefused(f"the host resolves to an address that is not allowed: {reason}")
        return addresses

    async def _resolved(self, host: str) -> list[Address]:
        try:
            addresses = [ip_address(answer) for answer in await self._resolver(host)]
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise OutboundUnreachable("the host's name could not be resolved")
        return addresses

    async def _open(self, address: Address, url: OutboundUrl) -> Connection:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        # The protocol is named because only then does asyncio turn Nagle's algorithm off.
        connected = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            connected.setblocking(False)
            _watch_the_peer(connected)
            await loop.sock_connect(connected, _socket_address(address, url.port))
            _, connection = await loop.create_connection(
                Connection,
                sock=connected,
                ssl=self._ssl_context if url.is_tls else None,
                server_hostname=url.host if url.is_tls else None,
            )
        except BaseException:
            connected.close()
            raise
        return connection

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        return self._given_ssl_context or _default_ssl_context()


def _watch_the_peer(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _socket_address(address: Address, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        bare, _, scope = str(address).partition("%")
        return bare, port, 0, int(scope)
    return str(address), port


def _default_ssl_context() -> ssl.SSLContext:
    """The system's authorities; those that come with certifi on a machine that has none."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    # Either is None when there is no such file or folder.
    stores = [Path(store) for store in (paths.cafile, paths.capath) if store]
    if not any(store.is_file() or any(store.iterdir()) for store in stores):
        context.load_verify_locations(certifi.where())
    return context


def _why_unreachable(error: OSError) -> str:
    """Words for the caller; never the error's own text, which names the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate could not be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason}"
    if error.errno is not None:
        return f"could not connect: {os.strerror(error.errno)}"
    return "could not connect: the connection was closed"
