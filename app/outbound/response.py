"""What came back from a call: the status, the headers and a capped body, exactly as they were on the wire.

Bodies are asked for uncompressed and never unpacked on the way in. A server that compresses all the same
is unpacked only on request, by `decoded`, which stops at its limit however much the data would swell to.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# "Tomorrow" is as far as anybody can mean; what lies beyond is a mistake, and no moment to compute with.
MAX_RETRY_AFTER_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    """An answer. `headers` have lower-case names; `truncated` says that the body went on past the cap."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    truncated: bool = False

    def header(self, name: str) -> str | None:
        """The first value of a header, by its lower-case name."""
        return first_value(self.headers, name)

    def decoded(self, max_bytes: int) -> tuple[bytes, bool]:
        """The body with gzip or deflate undone, at most `max_bytes` of it, and whether that is not all.

        An encoding that is unknown, or data that does not fit it, leaves the body as it came.
        """
        encoding = (self.header("content-encoding") or "identity").strip().lower()
        body = _inflated(self.body, encoding, max_bytes)
        if body is None:
            return self.body[:max_bytes], self.truncated or len(self.body) > max_bytes
        return body[0], self.truncated or body[1]

    def retry_after_seconds(self, now: datetime) -> float | None:
        """What Retry-After asks for, in seconds from `now`: from none to a day. None if it is not usable."""
        value = (self.header("retry-after") or "").strip()
        if value.isascii() and value.isdigit():
            return min(MAX_RETRY_AFTER_SECONDS, float(value[:9]))
        try:
            moment = parsedate_to_datetime(value)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = (moment - now).total_seconds()
        except (ValueError, OverflowError, TypeError, IndexError):
            # The last hours of the year 9999 are past the end of time in other zones.
            return None
        return min(MAX_RETRY_AFTER_SECONDS, max(0.0, seconds))


def first_value(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    return next((value for key, value in headers if key == name), None)


def _inflated(body: bytes, encoding: str, max_bytes: int) -> tuple[bytes, bool] | None:
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return None
    window = zlib.MAX_WBITS if encoding == "deflate" else zlib.MAX_WBITS | 16
    unpacker = zlib.decompressobj(window)
    try:
        # One byte more than asked for tells "exactly the limit" from "more to come".
        plain = unpacker.decompress(body, max_bytes + 1)
    except zlib.error:
        return None
    return plain[:max_bytes], len(plain) > max_bytes
