"""The OpenAPI side of events, streams and the feed."""

from app.api.describe import Json, _header, _maybe, _object, _operation, _problems, _query, _ref

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_TIME: Json = {"type": "string", "format": "date-time"}
_PATH: Json = {"name": "job_id", "in": "path", "required": True, "schema": _TEXT}
_TYPE: Json = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9._-]{0,63}$"}
_EVENT: Json = {
    "seq": {**_COUNT, "description": "Gapless from 1 for each job."},
    "type": {**_TYPE, "description": "A state, progress, log, output, or a name that a caller posted."},
    "state": {**_TEXT, "description": "The job's state at that moment."},
    "reason": _maybe({**_TEXT, "description": "The transition's verb."}),
    "data": {"description": "What the event carries; what was posted goes out as it came in."},
    "at": _TIME,
}

SCHEMAS: Json = {
    "Event": _object(_EVENT, list(_EVENT)),
    "FeedEvent": _object(
        {
            "job_id": _TEXT,
            "queue": _TEXT,
            **_EVENT,
            "truncated": {"type": "boolean", "description": "The data is too large for the feed."},
        },
        ["job_id", "queue", *_EVENT],
    ),
}

_WAIT = _query(
    "wait",
    "Hold until there is an event, at most this many seconds.",
    {"type": "number", "minimum": 0, "maximum": 300},
)
_TYPES = _query("types", "Only these types, separated by commas.")


def _events_and_stream(description: str, item: Json, cursor: Json) -> Json:
    page = _object(
        {"events": {"type": "array", "items": item}, "next_after": cursor}, ["events", "next_after"]
    )
    return {
        "description": description,
        "content": {
            "application/json": {"schema": page},
            "text/event-stream": {"schema": _TEXT},
        },
    }


READ = _operation(
    "Read or follow a job's events",
    {
        200: _events_and_stream(
            "Events in order. As server-sent events: `id` is the seq, `event` the type, `data` the event; "
            "the stream goes on live and ends when the job has ended.",
            _ref("Event"),
            {**_COUNT, "description": "The cursor to go on from; it moves even when no event matched."},
        ),
        204: {"description": "To a stream that resumes: the job has ended and there is nothing left to send"},
        **_problems(404, 422, 429, 503),
    },
    parameters=[
        _PATH,
        _query("after", "Only events after this seq.", _COUNT),
        _TYPES,
        _WAIT,
        _header("Last-Event-ID", "For streams: the last seq that was received; stronger than `after`."),
    ],
)
POST = _operation(
    "Post an event to a job",
    {
        201: {
            "description": "Written; whoever follows the job, its worker too, can read it",
            "content": {"application/json": {"schema": _object({"seq": _COUNT, "at": _TIME}, ["seq", "at"])}},
        },
        **_problems(400, 404, 409, 413, 422, 503),
    },
    parameters=[_PATH],
    body=_object(
        {"type": _TYPE, "payload": {"description": "Any JSON of up to 64 KB."}},
        ["type"],
        additionalProperties=False,
        example={"type": "approve", "payload": {"by": "ann"}},
    ),
)
FEED = _operation(
    "Follow the events of all jobs",
    {
        200: _events_and_stream(
            "Events in the order in which they were committed, each once. Without a cursor: from now on.",
            _ref("FeedEvent"),
            {**_TEXT, "description": "The cursor to go on from; kept for at least a day."},
        ),
        **_problems(422, 429, 503),
    },
    parameters=[
        _query("after", "A next_after or an id of this feed."),
        _query("queue", "Only jobs of this queue. Repeatable."),
        _TYPES,
        _WAIT,
        _header("Last-Event-ID", "For streams: the last id that was received."),
    ],
)
STREAM = _operation(
    "Attach to a job's token stream",
    {
        200: {
            "description": "What the job has said so far, then live, and one last frame that tells how it "
            "ended. Ollama frames as NDJSON, or as server-sent events when asked for; OpenAI chunks as "
            "server-sent events that end with `[DONE]`.",
            "content": {
                "application/x-ndjson": {"schema": _TEXT},
                "text/event-stream": {"schema": _TEXT},
            },
        },
        **_problems(404, 422, 429, 503),
    },
    parameters=[
        _PATH,
        _query(
            "dialect", "Whose frames.", {"type": "string", "enum": ["ollama", "openai"], "default": "ollama"}
        ),
        _header("Last-Event-ID", "The id of the last frame that was received: go on right behind it."),
    ],
)
