"""/v1/files, as OpenAI's clients know it: what batches are made of, and what they leave."""

import re
from typing import Annotated, Literal

import msgspec
from fastapi import Depends, Path, Query
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from app.api.artifacts import Found, Given, Slice
from app.api.inference import OPENAI_ERRORS, OpenAIError
from app.api.multipart import FileForm
from app.api.parameters import KnownFilters, Server, Tenant
from app.api.routes import JSON, Content, Errors, Reply, Routes
from app.artifacts.uploads import abandon, upload
from app.errors import FileInUse, NotFound
from app.identity.scopes import Scope
from app.jobs.batch_results import KEPT_SECONDS
from app.jobs.file_ids import FILE, own_id
from app.jobs.ids import new_id
from app.jobs.submission import TEN_YEARS, invalid, shown
from app.store import files as store
from app.store.files import File, NewFile
from app.telemetry import FILE_BYTES

STORED_ERRORS = Errors(
    OpenAIError,
    JSON,
    {**OPENAI_ERRORS.words, 404: "There is no such thing", 409: "A batch that has not ended reads it"},
)
routes = Routes("files", STORED_ERRORS)

# What there is something to be done with here.
PURPOSE = "batch"
PURPOSES = (PURPOSE, "batch_output")
MAX_PAGE = 10_000
# Below and above every id.
FIRST, LAST = "", "~"
JSON_LINES = "application/jsonl"

_TAKEN_IN = FILE_BYTES.labels("in")
_GIVEN_OUT = FILE_BYTES.labels("out")
_EXPIRY = ("expires_after[anchor]", "expires_after[seconds]")
_FIELDS = ("purpose", *_EXPIRY)

FileId = Annotated[str, Path(description="As in `file-01J…`.")]


class FileObject(msgspec.Struct, kw_only=True):
    """A file, as OpenAI describes it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FilePage(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class NewFileForm(msgspec.Struct, kw_only=True):
    """The fields of the form."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"}, description="One request a line.")]
    purpose: Literal["batch"]
    expires_after_anchor: Literal["created_at"] = msgspec.field(
        default="created_at", name="expires_after[anchor]"
    )
    expires_after_seconds: Annotated[int, Meta(ge=1)] = msgspec.field(
        default=int(KEPT_SECONDS), name="expires_after[seconds]"
    )


def described(file: File) -> FileObject:
    return FileObject(
        id=f"{FILE}{file.id}",
        bytes=file.size,
        created_at=int(file.created_at.timestamp()),
        expires_at=None if file.expires_at is None else int(file.expires_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
    )


@routes.post(
    "/v1/files",
    Scope.JOBS_WRITE,
    "Upload a file",
    Reply("The file", FileObject),
    errors=(400, 413, 503),
    request=Content(NewFileForm, "multipart/form-data"),
)
async def create(request: Request, server: Server, tenant: Tenant) -> FileObject:
    form = FileForm(request, "file", server.settings.max_file_bytes)
    file_id = new_id()
    location = server.artifacts.new_location(file_id, "file")
    try:
        await upload(server.database, server.artifacts, location, form.file_pieces())
    except Exception as problem:
        raise (form.problem or problem) from problem
    try:
        keep_seconds = _keep_seconds(form)
        new = NewFile(file_id, tenant, form.filename or "", PURPOSE, form.size, location, keep_seconds)
        file = await store.add(server.database, new)
    except Exception:
        await abandon(server.database, location)
        raise
    _TAKEN_IN.inc(file.size)
    return described(file)


def _keep_seconds(form: FileForm) -> float:
    """Raises InvalidRequest naming what is wrong with the form."""
    for name in form.fields:
        if name not in _FIELDS:
            raise invalid(shown(name), "is not a known field")
    if form.filename is None:
        raise invalid("file", "is required")
    purpose = form.fields.get("purpose")
    if purpose != PURPOSE:
        raise invalid("purpose", f"must be {PURPOSE}: files for anything else are of no use here")
    anchor, seconds = (form.fields.get(name) for name in _EXPIRY)
    if anchor is None and seconds is None:
        return KEPT_SECONDS
    if anchor != "created_at":
        raise invalid(_EXPIRY[0], "must be created_at")
    if seconds is None or not re.fullmatch(r"[0-9]{1,10}", seconds) or not 1 <= int(seconds) <= TEN_YEARS:
        raise invalid(_EXPIRY[1], "must be a whole number of seconds from 1 on")
    return float(seconds)


@routes.get(
    "/v1/files", Scope.JOBS_READ, "List files", Reply("The files, newest first", FilePage), errors=(400, 503)
)
async def listed(
    server: Server,
    tenant: Tenant,
    _known: Annotated[None, Depends(KnownFilters())],
    purpose: Annotated[str | None, Query(description="batch or batch_output.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    order: Annotated[Literal["asc", "desc"], Query(description="By the time of creation.")] = "desc",
    after: Annotated[str | None, Query(description="The id of the last one of the page before.")] = None,
) -> FilePage:
    if purpose is not None and purpose not in PURPOSES:
        raise invalid("purpose", f"must be one of {', '.join(PURPOSES)}")
    newest_first = order == "desc"
    begin = LAST if newest_first else FIRST
    if after is not None:
        begin = own_id(after, FILE) or ""
        if not begin:
            raise invalid("after", "is not the id of a file")
    found = await store.page(server.database, tenant, purpose, begin, limit + 1, newest_first=newest_first)
    data = [described(file) for file in found[:limit]]
    return FilePage(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(found) > limit,
    )


@routes.get(
    "/v1/files/{file_id}", Scope.JOBS_READ, "One file", Reply("The file", FileObject), errors=(404, 503)
)
async def get(server: Server, tenant: Tenant, file_id: FileId) -> FileObject:
    return described(await _existing(server, file_id, tenant))


@routes.get(
    "/v1/files/{file_id}/content",
    Scope.JOBS_READ,
    "What is in a file",
    Reply("All of it", bytes, media_type=JSON_LINES),
    errors=(404, 503),
)
async def content(server: Server, tenant: Tenant, file_id: FileId) -> Response:
    file = await _existing(server, file_id, tenant)
    found = Found(JSON_LINES, file.size, "", None, file.location)
    headers = {
        "content-type": JSON_LINES,
        "content-length": str(file.size),
        # What somebody sent is not ours: never run as a page of this server.
        "content-disposition": "attachment",
        "cache-control": "private, no-cache",
    }
    return Given(server, found, Slice(200, 0, file.size), headers, counted=_GIVEN_OUT)


@routes.delete(
    "/v1/files/{file_id}",
    Scope.JOBS_WRITE,
    "Delete a file",
    Reply("It is gone", DeletedFile),
    errors=(404, 409, 503),
)
async def delete(server: Server, tenant: Tenant, file_id: FileId) -> DeletedFile:
    file = await _existing(server, file_id, tenant)
    gone = await store.delete(server.database, file.id, tenant)
    if gone is None:
        raise _not_found(file_id)
    if not gone:
        raise FileInUse(f"{file_id} is the input of a batch that has not ended.")
    return DeletedFile(id=file_id)


async def _existing(server: Server, file_id: str, tenant: str) -> File:
    own = own_id(file_id, FILE)
    file = None if own is None else await store.get(server.database, own, tenant)
    if file is None:
        raise _not_found(file_id)
    return file


def _not_found(file_id: str) -> NotFound:
    return NotFound(f"No such file: {shown(file_id)}")
