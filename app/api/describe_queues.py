"""The OpenAPI side of queues, dead letters, bulk operations and schedules."""

from app.api.describe import (
    _COUNT,
    _JOB_ID,
    _NAME,
    _PATH_ID,
    _SECONDS,
    _STATES,
    _TEXT,
    _TIME,
    Json,
    _header,
    _maybe,
    _object,
    _ok,
    _operation,
    _problems,
    _query,
    _ref,
)
from app.jobs.queue_settings import MIN_RATE_LIMIT
from app.jobs.states import TERMINAL
from app.store.bulk import ACTIONS

_LIMIT: Json = {"type": "integer", "minimum": 1, "maximum": 10_000_000}
_QUEUE_PATH: Json = {"name": "name", "in": "path", "required": True, "schema": _NAME}
_SCHEDULE_PATH: Json = {"name": "name", "in": "path", "required": True, "schema": _NAME}
_OPERATION_PATH: Json = {"name": "operation_id", "in": "path", "required": True, "schema": _TEXT}

_SETTINGS: Json = {
    "max_depth": _maybe(
        {**_LIMIT, "description": "Jobs that may wait; one more is refused with 429 queue_full."}
    ),
    "max_running": _maybe({**_LIMIT, "description": "Jobs that run at once, over the whole fleet."}),
    "rate": _maybe(
        _object(
            {
                "limit": {"type": "number", "minimum": MIN_RATE_LIMIT, "maximum": 1_000_000},
                "per_seconds": {"type": "number", "minimum": 0.001, "maximum": 31_557_600, "default": 1},
                "burst": _maybe(
                    {"type": "number", "minimum": 1, "description": "At once; a fifth of limit if absent."}
                ),
            },
            ["limit"],
            additionalProperties=False,
            description="Claims per time, over the whole fleet.",
        )
    ),
    "fair_by": _maybe(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": 128,
            "description": "A metadata key, or `tenant`: its values take turns.",
        }
    ),
    "max_attempts": _maybe({"type": "integer", "minimum": 1, "maximum": 1000}),
    "backoff_seconds": {
        "anyOf": [
            _SECONDS,
            {"type": "array", "items": _SECONDS, "minItems": 1, "maxItems": 50},
            {"type": "null"},
        ]
    },
    "lease_seconds": _maybe({"type": "number", "minimum": 0.2, "maximum": 86_400}),
    "retention": _maybe(
        _object(
            {str(state): _SECONDS for state in sorted(TERMINAL)},
            additionalProperties=False,
            description="Seconds after its end that a job is kept, by state; 0: for ever. A state that is "
            "not named has the server's default: a week, or 30 days for failed and dismissed ones.",
        )
    ),
    "payload_schema": {
        "anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "null"}],
        "description": "JSON Schema that every payload must satisfy.",
    },
    "key": _maybe(
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 256},
            "minItems": 1,
            "maxItems": 16,
            "description": "Concurrency key: constants, and JSON pointers (leading slash) into the payload.",
        }
    ),
    "max_active": _maybe({**_LIMIT, "description": "Jobs of one key that run at once; 1 if absent."}),
    "max_queued": _maybe(
        {
            "type": "integer",
            "minimum": 0,
            "maximum": 10_000_000,
            "description": "Jobs of one key that wait; 0 if absent.",
        }
    ),
    "when_full": _maybe({"type": "string", "enum": ["reject", "coalesce", "replace-oldest"]}),
    "stale_policy": _maybe({"type": "string", "enum": ["fail-stale", "block"]}),
}

SCHEMAS: Json = {
    "QueueSettings": _object(_SETTINGS, additionalProperties=False),
    "Queue": _object(
        {
            "name": _NAME,
            "paused": {"type": "boolean"},
            "paused_at": _maybe(_TIME),
            **_SETTINGS,
            "counts": _object(dict.fromkeys(_STATES, _COUNT), _STATES),
            "ready": {**_COUNT, "description": "Queued jobs that could be claimed now."},
            "held": _object(
                {"scheduled": _COUNT, "key_busy": _COUNT, "waiting_for": _COUNT},
                description="Queued jobs that could not, by what holds them back.",
            ),
            "gated_by": _maybe({"type": "string", "enum": ["paused", "max_running", "rate", "key"]}),
            "ages": _object(
                {
                    "oldest_queued_seconds": _maybe({"type": "number", "minimum": 0}),
                    "oldest_running_seconds": _maybe({"type": "number", "minimum": 0}),
                }
            ),
            "rates": _object(
                {
                    f"{name}_per_second": {"type": "number", "minimum": 0}
                    for name in ("enqueued", "done", "failed")
                },
                description="Over the last minute.",
            ),
            "created_at": _TIME,
            "updated_at": _TIME,
        },
        ["name", "paused", "counts", "ages", "rates"],
    ),
    "Key": _object(
        {
            "key": _TEXT,
            "active": {
                "type": "array",
                "items": _object(
                    {
                        "job_id": _JOB_ID,
                        "worker": _maybe(_TEXT),
                        "started_at": _TIME,
                        "heartbeat_at": _maybe(_TIME),
                        "lease_expires_at": _maybe(_TIME),
                        "attempt": _COUNT,
                    }
                ),
            },
            "queued": {
                "type": "array",
                "items": _object({"job_id": _JOB_ID, "created_at": _TIME, "reason": _maybe(_TEXT)}),
            },
            "stale_takeovers": {**_COUNT, "description": "Jobs of this key that are stale now."},
        },
        ["key", "active", "queued", "stale_takeovers"],
    ),
    "JobFilter": _object(
        {
            "state": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]},
            "queue": _maybe(_TEXT),
            "kind": _maybe(_TEXT),
            "model": _maybe(_TEXT),
            "since": _maybe(_TIME),
            "until": _maybe(_TIME),
            "metadata": _maybe({"type": "object", "additionalProperties": _TEXT}),
        },
        additionalProperties=False,
        description="The filters of GET /jobs; an empty one matches everything.",
    ),
    "BulkOperation": _object(
        {
            "operation_id": _JOB_ID,
            "action": {"type": "string", "enum": list(ACTIONS)},
            "filter": _ref("JobFilter"),
            "state": {"type": "string", "enum": ["running", "done", "stopped"]},
            "matched": _maybe({**_COUNT, "description": "When it began; counted up to a million."}),
            "visited": _COUNT,
            "moved": {**_COUNT, "description": "Jobs that changed, with those that went along (children)."},
            "created_at": _TIME,
            "updated_at": _TIME,
            "completed_at": _maybe(_TIME),
        },
        ["operation_id", "action", "state", "visited", "moved"],
    ),
    "BulkCount": _object(
        {"action": _TEXT, "dry_run": {"type": "boolean"}, "matched": _COUNT}, ["action", "dry_run", "matched"]
    ),
    "NewSchedule": _object(
        {
            "cron": {"type": "string", "description": "Five fields, or six with leading seconds."},
            "timezone": {"type": "string", "default": "UTC"},
            "job": _ref("NewJob"),
        },
        ["cron", "job"],
        additionalProperties=False,
        example={"cron": "0 3 * * *", "timezone": "Europe/Berlin", "job": {"kind": "report", "payload": {}}},
    ),
    "Schedule": _object(
        {
            "name": _NAME,
            "cron": _TEXT,
            "timezone": _TEXT,
            "job": {"type": "object"},
            "next_at": _TIME,
            "last_at": _maybe(_TIME),
            "last_job_id": _maybe(_JOB_ID),
            "last_outcome": _maybe(
                {"type": "string", "description": "accepted, coalesced, replaced, or an error's code."}
            ),
            "last_error": _maybe(_TEXT),
            "created_at": _TIME,
            "updated_at": _TIME,
        },
        ["name", "cron", "timezone", "job", "next_at"],
    ),
}

LIST_QUEUES = _operation(
    "List queues",
    {
        200: _ok("All queues", _object({"queues": {"type": "array", "items": _ref("Queue")}}, ["queues"])),
        **_problems(503),
    },
)
GET_QUEUE = _operation(
    "Read a queue: settings, counts, ages, rates",
    {200: _ok("The queue", _ref("Queue")), **_problems(404, 503)},
    parameters=[_QUEUE_PATH],
)
PUT_QUEUE = _operation(
    "Configure a queue; settings that are not named have their defaults again",
    {
        200: _ok("Changed; counts everywhere within a second", _ref("Queue")),
        201: _ok("New", _ref("Queue")),
        **_problems(400, 413, 422, 503),
    },
    parameters=[_QUEUE_PATH],
    body=_ref("QueueSettings"),
)
PAUSE_QUEUE = _operation(
    "Give out no more jobs of this queue; those that run go on",
    {200: _ok("Paused", _ref("Queue")), **_problems(422, 503)},
    parameters=[_QUEUE_PATH],
)
RESUME_QUEUE = _operation(
    "Give out jobs again",
    {200: _ok("Not paused", _ref("Queue")), **_problems(422, 503)},
    parameters=[_QUEUE_PATH],
)
GET_KEY = _operation(
    "Who holds a concurrency key, and who waits for it",
    {200: _ok("The key", _ref("Key")), **_problems(404, 503)},
    parameters=[
        _QUEUE_PATH,
        {
            "name": "key",
            "in": "path",
            "required": True,
            "schema": _TEXT,
            "description": "Its parts joined by slashes.",
        },
    ],
)

_FILTERS = [
    _query("queue", "Only this queue."),
    _query("kind", "Only this kind."),
    _query("model", "Only this model."),
    _query("since", "Created at or after this moment.", _TIME),
    _query("until", "Created before this moment.", _TIME),
    _query("limit", "Page size.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
    _query("cursor", "From next_cursor."),
]
_WAIT = _header(
    "Prefer", "`wait=N`, N up to 300: answer 200 when the last step is taken, if that is in time."
)
_BULK_BODY = _object(
    {"filter": _ref("JobFilter"), "dry_run": {"type": "boolean", "default": False}},
    ["filter"],
    additionalProperties=False,
)
_BULK_ANSWERS: Json = {
    200: _ok("Counted (dry run), or finished in time", {"anyOf": [_ref("BulkCount"), _ref("BulkOperation")]}),
    202: _ok("Begun", _ref("BulkOperation"), {"Location": {"schema": _TEXT}}),
    **_problems(400, 413, 422, 503),
}

LIST_DEAD_LETTERS = _operation(
    "List dead letters, newest first",
    {
        200: _ok(
            "A page of failed jobs",
            _object(
                {"dead_letters": {"type": "array", "items": _ref("Job")}, "next_cursor": _maybe(_TEXT)},
                ["dead_letters", "next_cursor"],
            ),
            {"Link": {"schema": _TEXT}},
        ),
        **_problems(422, 503),
    },
    parameters=_FILTERS,
)
REPLAY = _operation(
    "Put a dead letter back into its queue, under the same id; attempts start over",
    {200: _ok("Queued again", _ref("Job")), **_problems(404, 409, 503)},
    parameters=[_PATH_ID],
)
DISMISS = _operation(
    "Give up on a dead letter",
    {200: _ok("Dismissed", _ref("Job")), **_problems(404, 409, 503)},
    parameters=[_PATH_ID],
)
REPLAY_MANY = _operation(
    "Replay all dead letters that match a filter", _BULK_ANSWERS, parameters=[_WAIT], body=_BULK_BODY
)
DISMISS_MANY = _operation(
    "Dismiss all dead letters that match a filter", _BULK_ANSWERS, parameters=[_WAIT], body=_BULK_BODY
)

BEGIN_BULK = _operation(
    "Cancel, retry, dismiss or delete all jobs that match a filter",
    _BULK_ANSWERS,
    parameters=[_WAIT],
    body=_object(
        {
            "action": {"type": "string", "enum": list(ACTIONS)},
            "filter": _ref("JobFilter"),
            "dry_run": {"type": "boolean", "default": False, "description": "Only count."},
        },
        ["action", "filter"],
        additionalProperties=False,
    ),
)
LIST_BULK = _operation(
    "List bulk operations, newest first",
    {
        200: _ok(
            "The last hundred",
            _object({"operations": {"type": "array", "items": _ref("BulkOperation")}}, ["operations"]),
        ),
        **_problems(503),
    },
)
GET_BULK = _operation(
    "How far a bulk operation got",
    {200: _ok("The operation", _ref("BulkOperation")), **_problems(404, 503)},
    parameters=[_OPERATION_PATH],
)
STOP_BULK = _operation(
    "Take no further steps of a bulk operation",
    {200: _ok("Stopped", _ref("BulkOperation")), **_problems(404, 409, 503)},
    parameters=[_OPERATION_PATH],
)

LIST_SCHEDULES = _operation(
    "List schedules",
    {
        200: _ok(
            "All schedules",
            _object({"schedules": {"type": "array", "items": _ref("Schedule")}}, ["schedules"]),
        ),
        **_problems(503),
    },
)
GET_SCHEDULE = _operation(
    "Read a schedule",
    {200: _ok("The schedule", _ref("Schedule")), **_problems(404, 503)},
    parameters=[_SCHEDULE_PATH],
)
PUT_SCHEDULE = _operation(
    "Make or change a schedule",
    {
        200: _ok("Changed", _ref("Schedule")),
        201: _ok("New", _ref("Schedule")),
        **_problems(400, 409, 413, 422, 503),
    },
    parameters=[_SCHEDULE_PATH],
    body=_ref("NewSchedule"),
)
DELETE_SCHEDULE = _operation(
    "Remove a schedule; jobs that it made stay",
    {204: {"description": "Gone"}, **_problems(404, 503)},
    parameters=[_SCHEDULE_PATH],
)
