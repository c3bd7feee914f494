"""How much of this server one key may have at a time. Each process counts for itself."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from app.config import Settings
from app.errors import RateLimited
from app.telemetry import LIMITED

# How long those wait who met a limit that is not one of time.
RETRY_SECONDS = 1.0

Many = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is absent is as the server's settings have it."""

    requests_per_second: Annotated[Many, Meta(description="Requests per second, as many at once.")] | None = (
        None
    )
    requests: Annotated[Many, Meta(description="Requests at the same time.")] | None = None
    connections: Annotated[Many, Meta(description="Open connections.")] | None = None
    streams: Annotated[Many, Meta(description="Streams of events and tokens at the same time.")] | None = None
    long_polls: Annotated[Many, Meta(description="Requests that wait for something.")] | None = None
    body_bytes: (
        Annotated[int, Meta(description="Bytes of larger bodies held at the same time.", ge=1024, le=1 << 40)]
        | None
    ) = None
    jobs: Annotated[Many, Meta(description="Jobs that have not ended, over the whole fleet.")] | None = None

    def over(self, usual: "Limits") -> "Limits":
        """These, and where there is none, the usual ones."""
        return Limits(
            **{
                name: mine if (mine := getattr(self, name)) is not None else getattr(usual, name)
                for name in self.__struct_fields__
            }
        )


UNLIMITED = Limits()


def usual_limits(settings: Settings) -> Limits:
    """Those of a key that has none of its own; 0 is none."""
    return Limits(
        requests_per_second=settings.key_requests_per_second or None,
        requests=settings.key_requests or None,
        connections=settings.key_connections or None,
        streams=settings.key_streams or None,
        long_polls=settings.key_long_polls or None,
        body_bytes=settings.key_body_bytes or None,
        jobs=settings.key_jobs or None,
    )


class Places:
    """So many at a time."""

    __slots__ = ("limit", "of", "taken")

    def __init__(self, of: str, limit: int | None) -> None:
        self.of = of
        self.limit = limit
        self.taken = 0

    def take(self) -> None:
        """Raises RateLimited when none is left; `leave` it in the end."""
        if not self.has_room:
            LIMITED.labels(self.of).inc()
            raise RateLimited(
                f"This key already has {self.limit} {self.of.replace('_', ' ')}.", retry_after=RETRY_SECONDS
            )
        self.taken += 1

    @property
    def has_room(self) -> bool:
        return self.limit is None or self.taken < self.limit

    def leave(self) -> None:
        self.taken -= 1

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.leave()


class InFlight:
    """Bytes of bodies that are held now."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.held = 0

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.held > self.limit


class RequestRate:
    """A token bucket: so many requests per second, and as many at once."""

    __slots__ = ("_at", "_left", "_lines", "_text", "_told", "limit", "policy")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.policy = b'"requests";q=%d;w=1' % limit
        self._lines = b"ratelimit-policy: %b\r\nratelimit: " % self.policy + b'"requests";r=%d;t=%d\r\n'
        self._left = float(limit)
        self._at = 0.0
        # How many were left when that was last written, and the text.
        self._told = -1
        self._text = b""

    def take(self, now: float) -> None:
        """Raises RateLimited when there was one too many just now, by time.perf_counter."""
        left = self._left + (now - self._at) * self.limit
        left = min(left, self.limit)
        self._at = now
        if left < 1:
            self._left = left
            LIMITED.labels("requests_per_second").inc()
            raise RateLimited(
                f"This key may make {self.limit} requests per second.",
                retry_after=(1 - left) / self.limit,
                headers={name.decode(): value.decode() for name, value in self.headers()},
            )
        self._left = left - 1

    def give_back(self) -> None:
        """It was no request after all."""
        self._left += 1

    def headers(self) -> list[tuple[bytes, bytes]]:
        """As draft-ietf-httpapi-ratelimit-headers has them: what is left, and in how many seconds all is."""
        left = int(self._left)
        return [
            (b"ratelimit-policy", self.policy),
            (b"ratelimit", b'"requests";r=%d;t=%d' % (left, left < self.limit)),
        ]

    def lines(self) -> bytes:
        """The same, ready to be sent; of a caller who is far from the limit it is always the same."""
        left = int(self._left)
        if left != self._told:
            self._told = left
            self._text = self._lines % (left, left < self.limit)
        return self._text
