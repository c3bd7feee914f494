"""JSON that goes out as it came in.

A body is taken apart into raw values (msgspec.Raw), so that key order, number spelling and escapes
survive. What JSON allows but nobody downstream can carry (lone surrogates), what is not JSON but often
taken for it (NaN), and nesting beyond the limit are refused here.
"""

import json
import re
from collections.abc import Iterator
from itertools import accumulate

import msgspec
import orjson

from app.errors import InvalidRequest, Unparsable

Members = dict[str, msgspec.Raw]

_decode_members = msgspec.json.Decoder(Members).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
# One up for an opening bracket, one down for a closing one, as signed bytes.
_UP, _PAIR = b"\x01", b"\x01\xff"
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_PEELED = 3
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SLICE_BYTES = 64 * 1024
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")
# Python's own parser explains best, but builds all that it reads: for much that is too dear.
_EXPLAINED_BYTES = 64 * 1024

DEFAULT_MAX_DEPTH = 64


def members(body: bytes, max_depth: int = DEFAULT_MAX_DEPTH) -> Members:
    """The top-level members of a JSON object, each as its raw text."""
    check_text(body, max_depth)
    try:
        return _decode_members(body)
    except msgspec.ValidationError as problem:
        raise InvalidRequest("The body must be a JSON object.") from problem
    except (msgspec.DecodeError, RecursionError) as problem:
        raise _explain(body, problem) from problem


def check_value(body: bytes, max_depth: int = DEFAULT_MAX_DEPTH) -> None:
    """Refuse what is not one clean JSON value."""
    check_text(body, max_depth)
    try:
        _decode_any(body)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise _explain(body, problem) from problem


def check_text(body: bytes, max_depth: int) -> None:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as problem:
            raise InvalidRequest(f"The body is not valid UTF-8 (byte {problem.start}).") from problem
    # Only a body with more opening brackets than the limit can be nested deeper than the limit.
    if body.count(b"[") + body.count(b"{") > max_depth and depth_exceeds(body, max_depth):
        raise InvalidRequest(f"The body is nested deeper than {max_depth} levels.")


def depth_exceeds(body: bytes, limit: int) -> bool:
    """At C speed, but slice by slice: whoever else wants the interpreter gets it in between."""
    depth = 0
    for steps in _bracket_steps(body):
        opening = steps.count(_UP)
        if depth + opening > limit and depth + _at_most(steps) > limit and depth + _highest(steps) > limit:
            return True
        depth += 2 * opening - len(steps)
    return False


def _highest(steps: bytes) -> int:
    return max(accumulate(memoryview(steps).cast("b")))


def _at_most(steps: bytes) -> int:
    """A bound that costs less: most brackets are closed soon, and a layer is peeled off quickly."""
    for _ in range(_PEELED):
        steps = steps.replace(_PAIR, b"")
    return _PEELED + (_highest(steps) if steps else 0)


def _bracket_steps(body: bytes) -> Iterator[bytes]:
    """The brackets outside of strings; in what is not JSON perhaps others, but that the parser refuses."""
    start, in_string = 0, False
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        # No slice ends between a backslash and what it escapes.
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[start : start + len(piece) + 1]
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[in_string::2])
        in_string ^= len(parts) % 2 == 0
        yield outside.translate(_STEPS, _NOT_BRACKETS)


def assemble(parts: Members, leave_out: frozenset[str]) -> str:
    """The object again, without some of its members."""
    return (
        "{"
        + ",".join(
            [
                f"{orjson.dumps(name).decode()}:{bytes(raw).decode()}"
                for name, raw in parts.items()
                if name not in leave_out
            ]
        )
        + "}"
    )


def _explain(body: bytes, problem: Exception) -> InvalidRequest:
    """Off the hot path: say whether this is not JSON at all (400) or JSON nobody can carry (422)."""
    if len(body) > _EXPLAINED_BYTES and isinstance(problem, msgspec.DecodeError):
        return _explain_briefly(body, str(problem))
    try:
        # As text: given bytes, it would take UTF-16 and byte order marks for JSON.
        json.loads(body.decode())
    except RecursionError:
        return InvalidRequest("The body is nested too deeply.")
    except ValueError as found:
        if isinstance(found, json.JSONDecodeError):
            where = f"line {found.lineno} column {found.colno}"
            return Unparsable(f"The body is not JSON: {found.msg} at {where}.")
        # Python refuses integers of more than 4,300 digits; JSON does not.
        return InvalidRequest("The body has a number that is too long.")
    return _not_carried()


def _explain_briefly(body: bytes, message: str) -> InvalidRequest:
    found = re.search(r"\(byte (\d+)\)", message)
    if "surrogate" in message or (found is None and _LONE_SURROGATE.search(body)):
        return _not_carried()
    if found is not None and body.startswith((b"NaN", b"Infinity"), int(found[1])):
        return _not_carried()
    return Unparsable(f"The body is not JSON: {message.removeprefix('JSON is malformed: ')}.")


def _not_carried() -> InvalidRequest:
    return InvalidRequest("The body has NaN, Infinity or a lone surrogate, which JSON cannot carry.")
