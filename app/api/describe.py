"""The OpenAPI side of the direct routes: what each takes and answers, written by hand.

`tests/api/test_openapi.py` checks the committed document against this and real answers against it.
"""

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
    "Accepted": _object(
        {
            "job_id": _JOB_ID,
            "state": _STATE,
            "outcome": {"type": "string", "enum": ["accepted", "coalesced", "replaced"]},
        },
        ["job_id", "state", "outcome"],
    ),
    "JobError": _object(
        {"code": _TEXT, "message": _TEXT, "retryable": {"type": "boolean"}}, ["code", "message", "retryable"]
    ),
    "Artifact": _object(
        {"name": _TEXT, "content_type": _TEXT, "size": _COUNT, "inline": _TEXT, "url": _TEXT},
        ["name", "content_type", "size"],
    ),
    "Job": _object(
        {
            "job_id": _JOB_ID,
            "kind": _TEXT,
            "queue": _TEXT,
            "state": _STATE,
            "reason": _maybe(
                {
                    **_TEXT,
                    "description": "Why. `no_worker`: nobody has lately asked for its kind.",
                }
            ),
            "reason_since": {
                **_TIME,
                "description": "Only with `no_worker`: since when. It moves no `seq`.",
            },
            "priority": {"type": "integer"},
            "model": _maybe(_TEXT),
            "payload": {"description": "As submitted, verbatim. Not in lists."},
            "result": {"description": "What the worker answered, verbatim. Not in lists."},
            "error": _maybe(_ref("JobError")),
            "attempt": _COUNT,
            "max_attempts": _COUNT,
            "deferrals": _COUNT,
            "progress": _maybe({"type": "object"}),
            "created_at": _TIME,
            "run_at": _maybe({**_TIME, "description": "null while its target is asleep: nobody knows when."}),
            "started_at": _maybe(_TIME),
            "completed_at": _maybe(_TIME),
            "updated_at": _TIME,
            "deadline": _maybe(_TIME),
            "worker": _maybe(_TEXT),
            "target": _maybe(_TEXT),
            "lease_expires_at": _maybe(_TIME),
            "concurrency_key": _maybe(_TEXT),
            "parent_id": _maybe(_JOB_ID),
            "metadata": {"type": "object", "additionalProperties": _TEXT},
            "artifacts": {"type": "array", "items": _ref("Artifact")},
            "trace": _object(
                {"request_id": _maybe(_TEXT), "traceparent": _maybe(_TEXT), "tracestate": _maybe(_TEXT)}
            ),
            "timings": _object(
                {
                    "queued_seconds": {"type": "number"},
                    "loading_seconds": {"type": "number"},
                    "working_seconds": {"type": "number"},
                }
            ),
            "queue_position": _maybe({**_COUNT, "description": "1 is next; only while queued and ready."}),
            "seq": _COUNT,
            "usage": _maybe({"type": "object"}),
        },
        ["job_id", "kind", "queue", "state", "attempt", "created_at", "seq", "metadata"],
    ),
    "Problem": _object(
        {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "code": _TEXT, "detail": _TEXT},
        ["type", "title", "status", "code", "detail"],
        additionalProperties=True,
        description="RFC 9457; `code` is stable.",
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
_IDEMPOTENCY = _header(
    "Idempotency-Key", "Same key and body: the first answer again.", {"type": "string", "maxLength": 255}
)
_TRACE = [
    _header("traceparent", "W3C trace context; made when absent."),
    _header("tracestate", "W3C trace state."),
]


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


_LOCATION = {
    "Location": {"schema": _TEXT},
    "Idempotency-Replayed": {"schema": {"type": "string", "enum": ["true"]}},
}

SUBMIT = _operation(
    "Submit a job",
    {
        202: _ok("Accepted: the job is safely queued", _ref("Accepted"), _LOCATION),
        200: _ok(
            "Coalesced into the job that is named; or with `Prefer: wait` the finished job",
            {"anyOf": [_ref("Accepted"), _ref("Job")]},
            {"Preference-Applied": {"schema": _TEXT}},
        ),
        **_problems(400, 404, 408, 409, 413, 422, 429, 503),
    },
    parameters=[
        _IDEMPOTENCY,
        _header("Prefer", "`wait=N`, N up to 300: answer 200 with the whole job if it ends in time."),
        *_TRACE,
    ],
    body=_ref("NewJob"),
)
SUBMIT_BATCH = _operation(
    "Submit up to 1000 jobs in one commit",
    {
        202: _ok(
            "All accepted, answers in order",
            _object({"jobs": {"type": "array", "items": _ref("Accepted")}}, ["jobs"]),
        ),
        **_problems(400, 404, 408, 409, 413, 422, 429, 503),
    },
    parameters=[_IDEMPOTENCY, *_TRACE],
    body=_object(
        {"jobs": {"type": "array", "items": _ref("NewJob"), "minItems": 1, "maxItems": 1000}}, ["jobs"]
    ),
)
GET_JOB = _operation(
    "Read a job",
    {
        200: _ok("The job", _ref("Job"), {"ETag": {"schema": _TEXT, "description": "The job's seq."}}),
        304: {"description": "Not changed since If-None-Match"},
        **_problems(404, 422, 503),
    },
    parameters=[
        _PATH_ID,
        _query(
            "wait",
            "Hold until the job has ended, at most this many seconds.",
            {"type": "number", "minimum": 0, "maximum": 300},
        ),
        _header("If-None-Match", "An ETag; answers 304 when the job has not changed."),
    ],
)
LIST_JOBS = _operation(
    "List jobs, newest first",
    {
        200: _ok(
            "A page of jobs, without payload, result and artifacts. It may be short, even empty, and not be "
            "the last: go on until next_cursor is null",
            _object(
                {"jobs": {"type": "array", "items": _ref("Job")}, "next_cursor": _maybe(_TEXT)},
                ["jobs", "next_cursor"],
            ),
            {"Link": {"schema": _TEXT, "description": 'The next page, rel="next".'}},
        ),
        **_problems(422, 503),
    },
    parameters=[
        _query("state", "Repeatable.", {"type": "array", "items": _STATE}, style="form", explode=True),
        _query("queue", "Only this queue."),
        _query("kind", "Only this kind."),
        _query("model", "Only this model."),
        _query("since", "Created at or after this moment.", _TIME),
        _query("until", "Created before this moment.", _TIME),
        _query("limit", "Page size.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
        _query("cursor", "From next_cursor."),
    ],
)
CANCEL = _operation(
    "Cancel a job and its children",
    {
        200: _ok("Cancelled, or it had ended already", _ref("Job")),
        202: _ok("It is running: its worker was asked to stop", _ref("Job")),
        **_problems(400, 404, 413, 422, 503),
    },
    parameters=[_PATH_ID],
    body=_object({"reason": _maybe({"type": "string", "maxLength": 500})}, additionalProperties=False),
    needs_body=False,
)
RETRY = _operation(
    "Revive a failed job under the same id",
    {200: _ok("Queued again", _ref("Job")), **_problems(404, 409, 503)},
    parameters=[_PATH_ID],
)
DELETE = _operation(
    "Delete a job that has ended, and all it owns",
    {204: {"description": "Gone"}, **_problems(404, 409, 503)},
    parameters=[_PATH_ID],
)
HEALTHZ = _operation("Is the process alive?", {200: _ok("Alive", _object({"status": _TEXT}))})
READYZ = _operation(
    "Is it ready to serve?",
    {200: _ok("Ready", _object({"status": _TEXT, "revision": _TEXT})), **_problems(503)},
)
VERSION = _operation(
    "Which version is this?", {200: _ok("The version", _object({"name": _TEXT, "version": _TEXT}))}
)
METRICS = _operation(
    "Prometheus metrics", {200: {"description": "Metrics", "content": {"text/plain": {"schema": _TEXT}}}}
)
