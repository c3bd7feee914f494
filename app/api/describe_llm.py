"""The OpenAPI side of the synchronous surfaces, the targets and the usage."""

from typing import Any

from app.targets.config import DEFAULT_SLOTS, MAX_SLOTS

Json = dict[Any, Any]

_TEXT: Json = {"type": "string"}
_NAME: Json = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"}
_TIME: Json = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}
_COUNT: Json = {"type": "integer", "minimum": 0}
_SECONDS: Json = {"type": "number", "minimum": 0}
_MAYBE_TEXT: Json = {"anyOf": [_TEXT, {"type": "null"}]}
_JOB_ID_HEADER: Json = {"X-Foreman-Job-Id": {"schema": _TEXT, "description": "The job behind this answer."}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _ok(description: str, content: Json, headers: Json | None = None) -> Json:
    return {"description": description, "content": content, **({"headers": headers} if headers else {})}


def _errors(schema: str, *statuses: int) -> Json:
    words = {
        400: "The body or a header is malformed",
        404: "No target has this model",
        413: "The body is too large",
        429: "Too many",
        500: "The target failed",
        503: "Overloaded, or shutting down",
        504: "The deadline has passed",
    }
    return {status: _ok(words[status], _json(_ref(schema))) for status in statuses}


def _header(name: str, description: str, schema: Json | None = None) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema or _TEXT,
    }


_EXTENSIONS = [
    _header("X-Foreman-Priority", "Higher goes first.", {"type": "integer", "minimum": -100, "maximum": 100}),
    _header("X-Foreman-Queue", "The queue to wait in.", _NAME),
    _header(
        "X-Foreman-Deadline-Seconds", "Give up after this long.", {"type": "number", "exclusiveMinimum": 0}
    ),
    _header(
        "X-Foreman-On-Disconnect",
        "What a hang-up means for the job.",
        {"type": "string", "enum": ["cancel", "continue"]},
    ),
    _header("Idempotency-Key", "The same request again attaches to the running job."),
]


def _inference(summary: str, schema: str, streams: str | None) -> Json:
    content = _json({"type": "object", "additionalProperties": True})
    if streams:
        content[streams] = {"schema": _TEXT}
    return {
        "summary": summary,
        "responses": {
            200: _ok("The answer, whole or as it comes", content, _JOB_ID_HEADER),
            **_errors(schema, 400, 404, 413, 429, 500, 503, 504),
        },
        "openapi_extra": {
            "parameters": _EXTENSIONS,
            "requestBody": {
                "required": True,
                "content": _json(
                    {
                        "type": "object",
                        "properties": {"model": {"type": "string", "minLength": 1}},
                        "required": ["model"],
                        "additionalProperties": True,
                    }
                ),
            },
        },
    }


def _lookup(
    summary: str, description: str, *, not_found: str | None = None, body: Json | None = None
) -> Json:
    responses: Json = {200: _ok(description, _json({"type": "object", "additionalProperties": True}))}
    if not_found:
        responses |= _errors(not_found, 404)
    extra: Json = {}
    if body:
        responses |= _errors("OllamaError", 400, 413)
        extra["requestBody"] = {"required": True, "content": _json(body)}
    return {"summary": summary, "responses": responses, "openapi_extra": extra}


NDJSON, SSE = "application/x-ndjson", "text/event-stream"

CHAT = _inference("Chat, as Ollama does", "OllamaError", NDJSON)
GENERATE = _inference("Generate, as Ollama does", "OllamaError", NDJSON)
EMBED = _inference("Embed, as Ollama does", "OllamaError", None)
EMBEDDINGS = _inference("Embed one prompt, as Ollama used to", "OllamaError", None)
CHAT_COMPLETIONS = _inference("Chat, as OpenAI does", "OpenAIError", SSE)
COMPLETIONS = _inference("Complete, as OpenAI does", "OpenAIError", SSE)
OPENAI_EMBEDDINGS = _inference("Embed, as OpenAI does", "OpenAIError", None)

ROOT: Json = {
    "summary": "What Ollama answers; browsers are led to the dashboard",
    "responses": {
        200: {"description": "Ollama is running", "content": {"text/plain": {"schema": _TEXT}}},
        307: {"description": "For browsers: the dashboard"},
    },
}
VERSION = _lookup("The Ollama version that is spoken here", "The version")
TAGS = _lookup("The models of all targets", "The models, as Ollama lists them")
PS = _lookup("The models that are resident", "The models, as Ollama lists them")
SHOW = _lookup(
    "What is known of a model",
    "As Ollama shows it",
    not_found="OllamaError",
    body={"type": "object", "properties": {"model": _TEXT, "name": _TEXT, "verbose": {"type": "boolean"}}},
)
MODELS = _lookup("The models of all targets", "The models, as OpenAI lists them")
MODEL: Json = {
    **_lookup("One model", "The model, as OpenAI shows it", not_found="OpenAIError"),
    "openapi_extra": {"parameters": [{"name": "model", "in": "path", "required": True, "schema": _TEXT}]},
}

_PROBLEM = {"application/problem+json": {"schema": _ref("Problem")}}


def _problems(*statuses: int) -> Json:
    return {status: {"description": "A problem", "content": _PROBLEM} for status in statuses}


_TARGET_PATH = [{"name": "name", "in": "path", "required": True, "schema": _NAME}]
LIST_TARGETS: Json = {
    "summary": "All targets and how they are",
    "responses": {
        200: _ok(
            "The targets",
            _json(
                {
                    "type": "object",
                    "properties": {"targets": {"type": "array", "items": _ref("Target")}},
                    "required": ["targets"],
                }
            ),
        ),
        **_problems(503),
    },
}
GET_TARGET: Json = {
    "summary": "One target",
    "responses": {200: _ok("The target", _json(_ref("Target"))), **_problems(404, 503)},
    "openapi_extra": {"parameters": _TARGET_PATH},
}
PUT_TARGET: Json = {
    "summary": "Make or change a target",
    "responses": {
        200: _ok("Changed", _json(_ref("Target"))),
        201: _ok("Made", _json(_ref("Target"))),
        **_problems(400, 409, 413, 422, 503),
    },
    "openapi_extra": {
        "parameters": _TARGET_PATH,
        "requestBody": {"required": True, "content": _json(_ref("NewTarget"))},
    },
}
DELETE_TARGET: Json = {
    "summary": "Remove a target; jobs that waited for it are looked at again",
    "responses": {204: {"description": "Removed"}, **_problems(404, 409, 503)},
    "openapi_extra": {"parameters": _TARGET_PATH},
}
USAGE: Json = {
    "summary": "What was used, by caller, model and day (UTC)",
    "responses": {
        200: _ok(
            "The sums",
            _json(
                {
                    "type": "object",
                    "properties": {"usage": {"type": "array", "items": _ref("Usage")}},
                    "required": ["usage"],
                }
            ),
        ),
        **_problems(422, 503),
    },
    "openapi_extra": {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string", "format": "date"}}
            for name in ("since", "until")
        ]
        + [{"name": "model", "in": "query", "required": False, "schema": _TEXT}]
    },
}

_WAKE: Json = {
    "type": "object",
    "properties": {
        "mac": _TEXT,
        "address": {**_TEXT, "default": "255.255.255.255"},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535, "default": 9},
        "url": _TEXT,
        "method": {"type": "string", "enum": ["GET", "POST", "PUT"], "default": "POST"},
    },
    "additionalProperties": False,
    "description": "A magic packet to a MAC address, or a URL to call.",
}
_TARGET_FIELDS: Json = {
    "url": {**_TEXT, "minLength": 1, "maxLength": 2048},
    "dialect": {"type": "string", "enum": ["ollama", "openai"], "default": "ollama"},
    "slots": {"type": "integer", "minimum": 1, "maximum": MAX_SLOTS, "default": DEFAULT_SLOTS},
    "tags": {"type": "array", "items": _NAME, "maxItems": 64},
    "wake": {"anyOf": [_WAKE, {"type": "null"}]},
}

SCHEMAS: Json = {
    "OllamaError": {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]},
    "OpenAIError": {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": _MAYBE_TEXT,
                    "code": _MAYBE_TEXT,
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    },
    "NewTarget": {
        "type": "object",
        "properties": {
            **_TARGET_FIELDS,
            "token": {"anyOf": [{**_TEXT, "minLength": 1}, {"type": "null"}], "description": "Kept sealed."},
        },
        "required": ["url"],
        "additionalProperties": False,
    },
    "Target": {
        "type": "object",
        "properties": {
            "name": _TEXT,
            **_TARGET_FIELDS,
            "has_token": {"type": "boolean"},
            "origin": {"type": "string", "enum": ["environment", "file", "api", "builtin"]},
            "state": {"type": "string", "enum": ["unknown", "awake", "asleep"]},
            "breaker": {"type": "string", "enum": ["closed", "open"]},
            "models": {"type": "array", "items": _TEXT},
            "resident": {"type": "array", "items": _TEXT},
            "version": _MAYBE_TEXT,
            "warning": _MAYBE_TEXT,
            "answered_at": _TIME,
            "asleep_since": _TIME,
        },
        "required": ["name", "url", "dialect", "slots", "tags", "origin", "state", "models", "resident"],
    },
    "Usage": {
        "type": "object",
        "properties": {
            "caller": _TEXT,
            "model": _TEXT,
            "day": {"type": "string", "format": "date"},
            "jobs": _COUNT,
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "load_seconds": _SECONDS,
            "prefill_seconds": _SECONDS,
            "decode_seconds": _SECONDS,
        },
        "required": ["caller", "model", "day", "jobs", "prompt_tokens", "completion_tokens"],
    },
}
