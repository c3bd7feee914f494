"""Where a request ends: what its headers say about its body, and how large head and trailers may be."""

import httptools

from app.errors import HeadersTooLarge, Unparsable

MAX_HEADER_BYTES = 64 * 1024
MAX_TRAILER_BYTES = 8 * 1024
MAX_LENGTH_DIGITS = 18
END_OF_HEAD = b"\r\n\r\n"
# Where in a request the parser is; a number above is what is left of a body that said its length.
IN_HEAD = 0
IN_CHUNKED_BODY = -1


class Trailers(list[tuple[bytes, bytes]]):
    """Where the parser puts what looks like headers after the body: counted and forgotten."""

    def __init__(self) -> None:
        self._room = MAX_TRAILER_BYTES

    def append(self, trailer: tuple[bytes, bytes]) -> None:
        self._room -= len(trailer[0]) + len(trailer[1])
        if self._room < 0:
            raise trailers_too_large()


def trailers_too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"The trailers may have at most {MAX_TRAILER_BYTES} bytes.")


def ends_with_body(data: bytes, start: int, stop: int) -> bool:
    """Whether all that comes after the head is its body: the usual case, and then the parser is called once.

    Only a guess, which may be wrong: should a header of another name look like the length, the parser finds
    what is pipelined behind, as it does behind a chunked body.
    """
    at = data.find(b"ontent-", start, stop)
    while at >= 0:
        if data[at + 7 : at + 14].lower() == b"length:":
            length = data[at + 14 : data.find(b"\r", at, stop)].strip()
            return length.isdigit() and len(length) < 12 and stop + int(length) == len(data)
        at = data.find(b"ontent-", at + 7, stop)
    return False


def body_length(headers: list[tuple[bytes, bytes]]) -> int:
    """As far as the headers say it; the parser has found them sound."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return IN_CHUNKED_BODY
        if name == b"content-length":
            # Python refuses to read thousands of digits, and the parser takes them if they are zeros.
            if len(value) > MAX_LENGTH_DIGITS and len(value.strip()) > MAX_LENGTH_DIGITS:
                raise Unparsable(f"A Content-Length has at most {MAX_LENGTH_DIGITS} digits.")
            length = int(value)
    return length


def origin_form(url: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """`GET http://host/path`: the path; the Host header is to be ignored then (RFC 9112, 3.2.2)."""
    target = httptools.parse_url(url)
    if not target.host:
        return url
    host = b"[%b]" % target.host if b":" in target.host else target.host
    named = b"%b:%d" % (host, target.port) if target.port else host
    headers[:] = [each for each in headers if each[0] != b"host"]
    headers.append((b"host", named))
    return (target.path or b"/") + (b"?" + target.query if target.query else b"")
