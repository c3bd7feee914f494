"""The OpenAPI side of artifacts."""

from app.api.describe import Json, _header, _ok, _operation, _problems, _query, _ref

_TEXT: Json = {"type": "string"}
_PATH: list[Json] = [
    {"name": "job_id", "in": "path", "required": True, "schema": _TEXT},
    {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"},
    },
]
_BYTES: Json = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
_ETAG: Json = {"ETag": {"schema": _TEXT}}

PUT = _operation(
    "Add an artifact to a running job",
    {
        201: _ok("Added", _ref("Artifact"), _ETAG),
        200: _ok("Replaced the one of that name", _ref("Artifact"), _ETAG),
        **_problems(404, 408, 409, 413, 422, 503),
    },
    parameters=[
        *_PATH,
        _header("X-Foreman-Lease-Token", "The lease token of the claim."),
        _query("lease_token", "The same, for clients that cannot set headers."),
    ],
)
PUT["openapi_extra"]["requestBody"] = {"required": True, "content": _BYTES}

GET = _operation(
    "Read an artifact",
    {
        200: {"description": "All of it", "content": _BYTES, "headers": _ETAG},
        206: {
            "description": "The bytes that were asked for",
            "content": _BYTES,
            "headers": {**_ETAG, "Content-Range": {"schema": _TEXT}},
        },
        304: {"description": "Not changed since If-None-Match"},
        416: {
            "description": "There are no such bytes",
            "content": {"application/problem+json": {"schema": _ref("Problem")}},
        },
        **_problems(404, 503),
    },
    parameters=[
        *_PATH,
        _header("Range", "One range, such as `bytes=0-1023` or `bytes=-500`."),
        _header("If-Range", "An ETag: the range only if the artifact is still that one."),
        _header("If-None-Match", "An ETag; answers 304 when the artifact has not changed."),
    ],
)
