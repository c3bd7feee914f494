"""JSON Schema for payloads: compiled once per queue, checked at submit.

Offline on purpose: a `$ref` to somewhere else is refused when the queue is configured, never fetched.
Then, too, what checking against it may cost is bounded (schema_cost.py).
"""

from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec

from app.errors import InvalidRequest
from app.jobs.schema_cost import measured

MAX_MESSAGE = 300
# Whether a payload is valid is found out at the first thing that is wrong with it. To say what that is, each
# alternative of the schema is gone through to its end and every error written down: seconds for a megabyte.
EXPLAINED_BYTES = 16 * 1024
PIECE_BYTES = 256 * 1024

Check = Callable[[str], None]


def compile_schema(schema: dict[str, Any] | bool) -> Check:
    """A function that checks a payload's text. Raises InvalidRequest when the schema itself is wrong."""
    size = measured(schema)
    try:
        validator = jsonschema_rs.validator_for(
            schema, offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as problem:
        where = _pointer(getattr(problem, "instance_path", None) or ())
        message = _short(getattr(problem, "message", None) or str(problem))
        at = f" at {where}" if where else ""
        raise InvalidRequest(
            f"payload_schema: is not a JSON Schema{at}: {message}",
            errors=[{"field": "payload_schema", "pointer": where, "message": message}],
        ) from problem

    def check(payload: str) -> None:
        try:
            instance = _decode(payload.encode())
            if validator.is_valid(instance):
                return
            if len(payload) > EXPLAINED_BYTES or not size.can_explain(instance):
                raise _violated("", "is not valid, and it would take too long to say where")
            validator.validate(instance)
        except jsonschema_rs.ValidationError as problem:
            raise _violated(_pointer(problem.instance_path), _short(problem.message)) from problem
        except (ValueError, msgspec.MsgspecError) as problem:
            raise InvalidRequest(f"The payload cannot be checked: {_short(str(problem))}") from problem

    return check


def _decode(text: bytes | msgspec.Raw) -> Any:
    """A large one in pieces: whoever else wants the interpreter gets it in between."""
    size = memoryview(text).nbytes
    if size <= PIECE_BYTES:
        return msgspec.json.decode(text)
    match bytes(memoryview(text)[:1]):
        case b"{":
            members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            return {name: _decode(member) for name, member in members.items()}
        case b"[":
            return [_decode(element) for element in msgspec.json.decode(text, type=list[msgspec.Raw])]
        case _:
            return msgspec.json.decode(text)


def _violated(pointer: str, message: str) -> InvalidRequest:
    return InvalidRequest(
        f"The payload breaks the queue's schema at {pointer or '/'}: {message}.",
        errors=[{"field": "payload", "pointer": pointer, "message": message}],
    )


def _pointer(path: Any) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _short(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
