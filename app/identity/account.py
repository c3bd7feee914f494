"""What this process knows of a key that calls it: who it is, what it may do, and what it has open."""

import contextlib
import hashlib
import hmac
from collections.abc import Iterable
from typing import Protocol

from app.errors import Forbidden, RateLimited
from app.identity.limits import RETRY_SECONDS, UNLIMITED, InFlight, Limits, Places, RequestRate
from app.identity.scopes import ALL_SCOPES, Scope
from app.jobs.tenants import DEFAULT_TENANT
from app.telemetry import LIMITED

_TOKEN_BYTES = 18


class Connection(Protocol):
    """What a key's requests come by, one at a time."""

    # How many of its requests wait for something, or are answered for as long as the caller listens: one at a
    # time, but the next may begin before the last has quite ended.
    waits: int

    def key_ended(self) -> None:
        """Who waits, listens or is still sending is hung up on. What is about to be answered still is: it may
        be done already, and nobody would know."""


class Account:
    __slots__ = (
        "_lease_secret",
        "believed_until",
        "connections",
        "ended",
        "held",
        "jobs",
        "key_id",
        "long_polls",
        "max_connections",
        "name",
        "rate",
        "requests",
        "said",
        "scopes",
        "streams",
        "tenant",
        "used",
        "verified_at",
    )

    def __init__(
        self,
        key_id: str | None,
        tenant: str,
        scopes: Iterable[Scope],
        limits: Limits,
        *,
        name: str | None = None,
        lease_secret: bytes | None = None,
    ) -> None:
        self.key_id = key_id
        self.name = name
        self.tenant = tenant
        self.scopes = frozenset(scopes)
        self._lease_secret = lease_secret
        self.rate = None if limits.requests_per_second is None else RequestRate(limits.requests_per_second)
        self.requests = Places("requests", limits.requests)
        self.streams = Places("streams", limits.streams)
        self.long_polls = Places("long_polls", limits.long_polls)
        self.held = InFlight(limits.body_bytes)
        self.jobs = limits.jobs
        self.max_connections = limits.connections
        self.connections: set[Connection] = set()
        self.ended = False
        # By time.perf_counter: when the database last said so, and for how long that is believed.
        self.verified_at = 0.0
        self.believed_until = 0.0
        # The header by which it is recognised at once; and whether it was since it was last looked up.
        self.said: bytes | None = None
        self.used = False

    @property
    def may_wait(self) -> bool:
        """Whether one more request of it may wait for something."""
        return not self.ended and self.long_polls.has_room

    def require(self, scope: Scope | None) -> None:
        """Raises Forbidden unless the key may do that; None is what every key may."""
        if scope is not None and scope not in self.scopes:
            raise Forbidden(
                f"This key does not have the scope {scope}.",
                headers={"www-authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
                scope=str(scope),
            )

    def comes_by(self, connection: Connection) -> None:
        """Raises RateLimited when it has too many already."""
        if self.max_connections is not None and len(self.connections) >= self.max_connections:
            LIMITED.labels("connections").inc()
            raise RateLimited(
                f"This key already has {self.max_connections} connections.", retry_after=RETRY_SECONDS
            )
        self.connections.add(connection)

    def end(self) -> None:
        """The key is no more: nobody goes on listening, or claiming, with it."""
        self.ended = True
        for connection in list(self.connections):
            with contextlib.suppress(Exception):
                connection.key_ended()
        self.connections.clear()

    @property
    def binds_leases(self) -> bool:
        return self._lease_secret is not None

    def lease_token(self, job_id: str, token: str) -> str:
        """A lease token as this key knows it, from the one in the database; and the other way round.

        What is in the database is covered with a pad that only this key's hash makes: whoever else learns the
        token cannot settle with it, and nobody has to look up whose lease it is.
        """
        if self._lease_secret is None:
            return token
        try:
            known = bytes.fromhex(token)
        except ValueError:
            return token
        if len(known) != _TOKEN_BYTES:
            return token
        pad = hmac.digest(self._lease_secret, job_id.encode(), hashlib.sha256)[:_TOKEN_BYTES]
        return (int.from_bytes(known) ^ int.from_bytes(pad)).to_bytes(_TOKEN_BYTES).hex()


# Where there is no authentication, everybody; and with it, who needs none.
EVERYBODY = Account(None, DEFAULT_TENANT, ALL_SCOPES, UNLIMITED)
NOBODY = Account(None, "", (), UNLIMITED)
