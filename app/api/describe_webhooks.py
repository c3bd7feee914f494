"""The OpenAPI side of webhook deliveries, and of the messages that receivers get."""

from app.api.describe import (
    _COUNT,
    _JOB_ID,
    _STATE,
    _TEXT,
    _TIME,
    Json,
    _maybe,
    _object,
    _ok,
    _operation,
    _problems,
    _query,
    _ref,
)

_DELIVERY_STATE: Json = {"type": "string", "enum": ["pending", "delivered", "given_up", "refused"]}
_PATH_JOB: Json = {"name": "job_id", "in": "path", "required": True, "schema": _TEXT}
_PATH_DELIVERY: Json = {
    "name": "delivery_id",
    "in": "path",
    "required": True,
    "description": "The `webhook-id`: `<job_id>-<seq>`.",
    "schema": _TEXT,
}
_LIMIT = _query("limit", "Page size.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50})

_DELIVERY: Json = {
    "delivery_id": {"type": "string", "description": "The `webhook-id` header, equal on every try."},
    "seq": _COUNT,
    "type": {"type": "string", "description": "The type of the event it tells of."},
    "state": _DELIVERY_STATE,
    "tries": _COUNT,
    "last_status": _maybe({"type": "integer"}),
    "last_error": _maybe(_TEXT),
    "next_try_at": _maybe({**_TIME, "description": "Only while pending."}),
    "delivered_at": _maybe(_TIME),
}
_REQUIRED = list(_DELIVERY)

SCHEMAS: Json = {
    "Delivery": _object(_DELIVERY, _REQUIRED),
    "ListedDelivery": _object(
        {"job_id": _JOB_ID, "host": _TEXT, "created_at": _TIME, **_DELIVERY},
        ["job_id", "host", "created_at", *_REQUIRED],
    ),
    "WebhookMessage": _object(
        {
            "type": {"type": "string", "examples": ["job.done"]},
            "timestamp": _TIME,
            "data": _object(
                {
                    "job_id": _JOB_ID,
                    "seq": _COUNT,
                    "state": _STATE,
                    "previous_state": _maybe(_STATE),
                    "timestamp": _TIME,
                    "kind": _TEXT,
                    "queue": _TEXT,
                    "model": _maybe(_TEXT),
                    "attempt": _COUNT,
                    "error": _maybe(_ref("JobError")),
                    "result": {"description": 'Of a job that is done; over 256 KB, `{"artifact": …}`.'},
                    "artifacts": {"type": "array", "items": _ref("Artifact")},
                    "metadata": {"type": "object", "additionalProperties": _TEXT},
                    "event": {"description": "What the event said, for types that are not states."},
                },
                ["job_id", "seq", "state", "timestamp", "kind", "queue", "attempt", "artifacts", "metadata"],
            ),
        },
        ["type", "timestamp", "data"],
        description="The body of a webhook; see docs/receivers.md.",
    ),
}

OF_JOB = _operation(
    "The webhook deliveries of a job, in order",
    {
        200: _ok(
            "Up to 1000 deliveries; `next_after` when there are more",
            _object(
                {
                    "deliveries": {"type": "array", "items": _ref("Delivery")},
                    "next_after": _maybe(_COUNT),
                },
                ["deliveries"],
            ),
        ),
        **_problems(404, 422, 503),
    },
    parameters=[_PATH_JOB, _query("after", "Only those with a greater seq.", _COUNT)],
)
REDELIVER = _operation(
    "Send a delivery again, under the same id",
    {
        202: _ok("It is due now; its tries start over unless it was pending", _ref("Delivery")),
        **_problems(404, 503),
    },
    parameters=[_PATH_JOB, _PATH_DELIVERY],
)
LIST = _operation(
    "Webhook deliveries of all jobs, those of the newest jobs first",
    {
        200: _ok(
            "A page of deliveries",
            _object(
                {
                    "deliveries": {"type": "array", "items": _ref("ListedDelivery")},
                    "next_cursor": _maybe(_TEXT),
                },
                ["deliveries", "next_cursor"],
            ),
            {"Link": {"schema": _TEXT, "description": 'The next page, rel="next".'}},
        ),
        **_problems(422, 503),
    },
    parameters=[
        _query("host", "Only this receiver: `host`, or `host:port` for one of its ports."),
        _query("state", "Only deliveries in this state.", _DELIVERY_STATE),
        _LIMIT,
        _query("cursor", "From next_cursor."),
    ],
)
