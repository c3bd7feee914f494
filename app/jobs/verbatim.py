"""JSON that goes out as it came in.

A body is taken apart into raw values (msgspec.Raw), so that key order, number spelling and escapes
survive. What JSON allows but nobody downstream can carry (lone surrogates), what is not JSON but often
taken for it (NaN), and nesting beyond the limit are refused here.
"""

import json
import re

import msgspec
import orjson

from app.errors import InvalidRequest, Unparsable

Members = dict[str, msgspec.Raw]

_decode_members = msgspec.json.Decoder(Members).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
# A string that never ends reaches to the end: a match that could fail would be tried anew from each quote
# in it, and a small body would keep the process busy for minutes.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS_ONLY = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")

DEFAULT_MAX_DEPTH = 64


def members(body: bytes, max_depth: int = DEFAULT_MAX_DEPTH) -> Members:
    """The top-level members of a JSON object, each as its raw text."""
    check_text(body, max_depth)
    try:
        return _decode_members(body)
    except msgspec.ValidationError as problem:
        raise InvalidRequest("The body must be a JSON object.") from problem
    except (msgspec.DecodeError, RecursionError) as problem:
        raise _explain(body) from problem


def check_value(body: bytes, max_depth: int = DEFAULT_MAX_DEPTH) -> None:
    """Refuse what is not one clean JSON value."""
    check_text(body, max_depth)
    try:
        _decode_any(body)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise _explain(body) from problem


def check_text(body: bytes, max_depth: int) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as problem:
        raise InvalidRequest(f"The body is not valid UTF-8 (byte {problem.start}).") from problem
    # Only a body with more opening brackets than the limit can be nested deeper than the limit.
    if body.count(b"[") + body.count(b"{") > max_depth and depth_exceeds(body, max_depth):
        raise InvalidRequest(f"The body is nested deeper than {max_depth} levels.")


def depth_exceeds(body: bytes, limit: int) -> bool:
    """Peel the innermost pairs of brackets off, one layer a round, at C speed."""
    brackets = _STRING.sub(b"", body).translate(_BRACKETS_ONLY, _NOT_BRACKETS)
    for _ in range(limit):
        peeled = brackets.replace(b"[]", b"")
        if len(peeled) == len(brackets):
            # Nothing left to peel: flat, or unbalanced, which the parser will name.
            return brackets.startswith(b"[" * (limit + 1))
        brackets = peeled
    return bool(brackets)


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


def _explain(body: bytes) -> InvalidRequest:
    """Off the hot path: say whether this is not JSON at all (400) or JSON nobody can carry (422)."""
    try:
        # As text: given bytes, it would take UTF-16 and byte order marks for JSON.
        json.loads(body.decode())
    except RecursionError:
        return InvalidRequest("The body is nested too deeply.")
    except ValueError as problem:
        if isinstance(problem, json.JSONDecodeError):
            where = f"line {problem.lineno} column {problem.colno}"
            return Unparsable(f"The body is not JSON: {problem.msg} at {where}.")
        # Python refuses integers of more than 4,300 digits; JSON does not.
        return InvalidRequest("The body has a number that is too long.")
    return InvalidRequest("The body has NaN, Infinity or a lone surrogate, which JSON cannot carry.")
