"""What is left of the hand-written document: for routes that are not declared yet."""

from typing import Any

from app.jobs.states import State

Json = dict[Any, Any]

_STATES = [str(state) for state in State]


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _maybe(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(properties: Json, required: list[str] | None = None, **more: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        **more,
    }


_TEXT: Json = {"type": "string"}
_NAME: Json = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"}
_TIME: Json = {"type": "string", "format": "date-time"}
_SECONDS: Json = {"type": "number", "minimum": 0, "maximum": 315576000}
_POSITIVE: Json = {"type": "number", "exclusiveMinimum": 0, "maximum": 315576000}
_COUNT: Json = {"type": "integer", "minimum": 0}
_STATE: Json = {"type": "string", "enum": _STATES}
_JOB_ID: Json = {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$", "description": "A ULID."}

EXTENSIONS: Json = {
    "kind": {
        **_NAME,
        "default": "chat",
        "description": "chat, generate, embed, http, noop, or a kind of your own workers.",
    },
    "payload": {"type": "object", "description": "The work, for kinds other than chat, generate and embed."},
    "queue": {**_NAME, "default": "default"},
    "priority": {
        "type": "integer",
        "minimum": -100,
        "maximum": 100,
        "default": 0,
        "description": "Higher goes first.",
    },
    "run_at": _maybe({**_TIME, "description": "Not before this moment."}),
    "delay_seconds": _maybe(_SECONDS),
    "deadline": _maybe({**_TIME, "description": "The whole job expires at this moment."}),
    "deadline_seconds": _maybe(_POSITIVE),
    "max_duration_seconds": _maybe({**_POSITIVE, "description": "For one attempt."}),
    "max_attempts": _maybe({"type": "integer", "minimum": 1, "maximum": 1000}),
    "backoff_seconds": {
        "anyOf": [
            _SECONDS,
            {"type": "array", "items": _SECONDS, "minItems": 1, "maxItems": 50},
            {"type": "null"},
        ]
    },
    "parent_id": _maybe(_JOB_ID),
    "state_webhook_url": _maybe({"type": "string", "format": "uri", "maxLength": 2048}),
    "webhook_events": _maybe({"type": "array", "items": _TEXT, "maxItems": 50}),
    "webhook_secret": _maybe({"type": "string", "maxLength": 512}),
    "metadata": _maybe(
        {"type": "object", "additionalProperties": {"type": "string", "maxLength": 2048}, "maxProperties": 64}
    ),
    "target": _maybe(_NAME),
    "depends_on": _maybe(
        {
            "type": "array",
            "items": _JOB_ID,
            "maxItems": 100,
            "description": "Jobs that must be done first; until then this one is queued, reason waiting_for.",
        }
    ),
    "on_dependency_failure": _maybe(
        {
            "type": "string",
            "enum": ["cancel", "run"],
            "description": "What to do when one of them ends other than done; cancel if absent.",
        }
    ),
}

SCHEMAS: Json = {
    "NewJob": _object(
        {
            "model": {"type": "string", "description": "For chat, generate and embed."},
            "messages": _maybe({"type": "array", "items": {"type": "object"}}),
            **EXTENSIONS,
        },
        description="An Ollama-shaped body with Foreman's fields beside it, or those fields and a payload. "
        "Unknown fields of a chat, generate or embed body are passed on to the target.",
        additionalProperties=True,
        example={"model": "echo", "messages": [{"role": "user", "content": "Hello, Foreman!"}]},
    ),
}


def _content(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _ok(description: str, schema: Json, headers: Json | None = None) -> Json:
    return {
        "description": description,
        "content": _content(schema),
        **({"headers": headers} if headers else {}),
    }


_PROBLEMS = {
    400: "Unparsable",
    401: "A valid API key is needed",
    403: "The key may not do that",
    404: "No such job",
    408: "Sent too slowly",
    409: "The job's state does not allow that",
    413: "Body too large",
    422: "Well-formed but wrong",
    429: "Full, or too many requests",
    503: "Not available right now",
}


def _problems(*statuses: int) -> Json:
    return {
        status: {
            "description": _PROBLEMS[status],
            "content": {"application/problem+json": {"schema": _ref("Problem")}},
        }
        for status in statuses
    }


def _header(name: str, description: str, schema: Json | None = None) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema or _TEXT,
    }


def _query(name: str, description: str, schema: Json | None = None, **more: Any) -> Json:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": schema or _TEXT,
        **more,
    }


_PATH_ID: Json = {"name": "job_id", "in": "path", "required": True, "schema": _TEXT}


def _operation(
    summary: str,
    responses: Json,
    *,
    parameters: list[Json] | None = None,
    body: Json | None = None,
    needs_body: bool = True,
) -> Json:
    extra: Json = {}
    if parameters:
        extra["parameters"] = parameters
    if body:
        extra["requestBody"] = {"required": needs_body, "content": _content(body)}
    return {"summary": summary, "responses": responses, "openapi_extra": extra}
