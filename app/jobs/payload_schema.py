"""JSON Schema for payloads: compiled once per queue, checked at submit.

Offline on purpose: a `$ref` to somewhere else is refused when the queue is configured, never fetched.
Patterns run on an engine without backtracking, so that no schema makes a payload expensive.
"""

from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec

from app.errors import InvalidRequest

MAX_ERRORS = 20
MAX_MESSAGE = 300

Check = Callable[[str], None]


def compile_schema(schema: dict[str, Any] | bool) -> Check:
    """A function that checks a payload's text. Raises InvalidRequest when the schema itself is wrong."""
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
            problems = list(_first(validator.iter_errors(msgspec.json.decode(payload))))
        except (ValueError, msgspec.MsgspecError) as problem:
            raise InvalidRequest(f"The payload cannot be checked: {_short(str(problem))}") from problem
        if problems:
            raise _violated(problems)

    return check


def _first(problems: Any) -> Any:
    for count, problem in enumerate(problems, 1):
        yield problem
        if count == MAX_ERRORS:
            return


def _violated(problems: list[Any]) -> InvalidRequest:
    errors = [
        {"field": "payload", "pointer": _pointer(each.instance_path), "message": _short(each.message)}
        for each in problems
    ]
    first = errors[0]
    return InvalidRequest(
        f"The payload breaks the queue's schema at {first['pointer'] or '/'}: {first['message']}.",
        errors=errors,
    )


def _pointer(path: Any) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _short(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
