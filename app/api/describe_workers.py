"""The OpenAPI side of the worker protocol."""

from app.api.describe import Json, _maybe, _object, _ok, _operation, _problems, _ref
from app.dialects.usage import MAX_SECONDS, MAX_TOKENS

_TEXT: Json = {"type": "string"}
_TOKEN: Json = {"lease_token": {"type": "string", "minLength": 1, "maxLength": 200}}
_DELAY: Json = {
    "delay_seconds": _maybe({"type": "number", "minimum": 0}),
    "reason": _maybe({"type": "string", "maxLength": 500}),
}
_PATH: Json = {"name": "job_id", "in": "path", "required": True, "schema": _TEXT}
_TIME: Json = {"type": "string", "format": "date-time"}

_LEASE_SECONDS: Json = {"type": "number", "minimum": 0.05, "maximum": 86400}

CLAIM = _operation(
    "Claim jobs under a lease",
    {
        200: _ok(
            "The claimed jobs, each with its lease_token; an empty list when the wait is over",
            _object({"jobs": {"type": "array", "items": _ref("Job")}}, ["jobs"]),
        ),
        **_problems(400, 413, 422, 503),
    },
    body=_object(
        {
            "worker": {"type": "string", "minLength": 1, "maxLength": 200},
            "queues": {
                "type": "array",
                "items": _TEXT,
                "minItems": 1,
                "maxItems": 100,
                "default": ["default"],
            },
            "kinds": _maybe({"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 100}),
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1},
            "lease_seconds": _maybe(_LEASE_SECONDS),
            "wait_seconds": {"type": "number", "minimum": 0, "maximum": 60, "default": 0},
            "concurrency": _maybe({"type": "integer", "minimum": 1, "maximum": 100000}),
            "version": _maybe({"type": "string", "maxLength": 200}),
        },
        ["worker"],
        additionalProperties=False,
    ),
)

_TOKENS: Json = _maybe({"type": "integer", "minimum": 0, "maximum": MAX_TOKENS})
_USED_SECONDS: Json = _maybe({"type": "number", "minimum": 0, "maximum": MAX_SECONDS})
_USAGE: Json = _object(
    {
        "prompt_tokens": _TOKENS,
        "completion_tokens": _TOKENS,
        "load_seconds": _USED_SECONDS,
        "prefill_seconds": _USED_SECONDS,
        "decode_seconds": _USED_SECONDS,
    },
    additionalProperties=True,
)

_FIELDS: dict[str, tuple[str, Json]] = {
    "start": ("loading → working", {}),
    "heartbeat": ("Renew the lease", {"lease_seconds": _maybe(_LEASE_SECONDS)}),
    "progress": (
        "Report progress",
        {
            "step": _maybe({"type": "string", "maxLength": 500}),
            "message": _maybe({"type": "string", "maxLength": 10000}),
            "current": _maybe({"type": "number", "minimum": 0}),
            "total": _maybe({"type": "number", "minimum": 0}),
            "fraction": _maybe({"type": "number", "minimum": 0, "maximum": 1}),
        },
    ),
    "logs": (
        "Write log entries",
        {
            "entries": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1000,
                "items": _object(
                    {
                        "level": {"type": "string", "enum": ["info", "warn", "error"]},
                        "message": _TEXT,
                        "at": _maybe(_TEXT),
                    },
                    ["message"],
                    additionalProperties=False,
                ),
            }
        },
    ),
    "complete": (
        "loading, working → done",
        {"result": {"description": "Any JSON, kept verbatim."}, "usage": _maybe(_USAGE)},
    ),
    "fail": (
        "loading, working → failed, or queued again when retryable and attempts are left",
        {
            "error": _object({"code": _TEXT, "message": _TEXT}, additionalProperties=False),
            "retryable": {"type": "boolean", "default": False},
            "retry_in_seconds": _maybe({"type": "number", "minimum": 0}),
        },
    ),
    "release": ("loading, working → queued; no attempt spent", _DELAY),
    "defer": ("loading, working → queued later; no attempt spent", _DELAY),
}


def settling(verb: str) -> Json:
    summary, fields = _FIELDS[verb]
    answers = {
        "heartbeat": _object(
            {"lease_expires_at": _TIME, "cancel_requested": {"type": "boolean"}, "deadline": _maybe(_TIME)},
            ["lease_expires_at", "cancel_requested", "deadline"],
        ),
        "progress": _object({"job_id": _TEXT, "seq": {"type": "integer"}}),
        "logs": _object({"job_id": _TEXT, "seq": {"type": "integer"}}),
    }
    answer = answers.get(verb, _object({"job_id": _TEXT, "state": _TEXT}, ["job_id", "state"]))
    required = ["lease_token", "entries"] if verb == "logs" else ["lease_token"]
    return _operation(
        summary,
        {200: _ok("Done", answer), **_problems(400, 404, 409, 413, 422, 503)},
        parameters=[_PATH],
        body=_object({**_TOKEN, **fields}, required, additionalProperties=False),
    )


SETTLEMENTS = _operation(
    "Settle up to 1000 jobs in one commit, each answered on its own",
    {
        200: _ok(
            "Answers in order",
            _object(
                {
                    "settlements": {
                        "type": "array",
                        "items": _object(
                            {"job_id": _TEXT, "ok": {"type": "boolean"}, "code": _TEXT}, ["job_id", "ok"]
                        ),
                    }
                },
                ["settlements"],
            ),
        ),
        **_problems(400, 413, 422, 503),
    },
    body=_object(
        {
            "settlements": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1000,
                "items": _object(
                    {
                        "job_id": _TEXT,
                        "verb": {
                            "type": "string",
                            "enum": [
                                "complete",
                                "fail",
                                "release",
                                "defer",
                                "start",
                                "progress",
                                "heartbeat",
                            ],
                        },
                        **_TOKEN,
                    },
                    ["job_id", "verb", "lease_token"],
                    additionalProperties=True,
                ),
            }
        },
        ["settlements"],
        additionalProperties=False,
    ),
)
WORKERS = _operation(
    "Who is about",
    {
        200: _ok(
            "Workers, last seen first",
            _object({"workers": {"type": "array", "items": {"type": "object"}}}, ["workers"]),
        ),
        **_problems(503),
    },
)
