"""/keys: API keys. Whoever may write here may do everything: a key can be made for any tenant and scope."""

from typing import Annotated

import msgspec
import structlog
from fastapi import Depends, Query
from msgspec import Meta
from starlette.requests import Request

from app.api.parameters import Caller, JsonBody, KnownFilters, Server
from app.api.routes import Answer, Content, Reply, Routes
from app.api.services import request_id_of
from app.errors import NotFound
from app.identity.key import PATTERN, hash_of, new_key
from app.identity.limits import Limits
from app.identity.scopes import ALL_SCOPES, USUAL_SCOPES, Scope
from app.jobs.ids import ID_LENGTH, is_id
from app.jobs.shapes import JobId, Moment
from app.jobs.submission import TEN_YEARS, Name, invalid
from app.store import api_keys
from app.store.database import Database

log = structlog.get_logger()
routes = Routes("operators")

MAX_LISTED = 200
LAST_ID = "7" + "Z" * (ID_LENGTH - 1)
KeyId = JobId


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="What it is for.")]
    tenant: Annotated[Name, Meta(description="Whose jobs it sees; as the caller's own if absent.")] | None = (
        None
    )
    scopes: (
        Annotated[
            list[str],
            Meta(
                min_length=1,
                description="Everything about its tenant's jobs if absent: jobs:write, jobs:read, jobs:work.",
                extra_json_schema={"items": {"enum": [str(each) for each in ALL_SCOPES]}},
            ),
        ]
        | None
    ) = None
    expires_in_seconds: Annotated[float, Meta(gt=0, le=TEN_YEARS, description="Never if absent.")] | None = (
        None
    )
    limits: Limits | None = None

    def check(self) -> None:
        if "\0" in self.name:
            raise invalid("name", "has a NUL character")
        unknown = [each for each in self.scopes or () if each not in set(ALL_SCOPES)]
        if unknown:
            raise invalid("scopes", f"must be some of {', '.join(ALL_SCOPES)}")


class Key(msgspec.Struct, kw_only=True):
    key_id: KeyId
    name: str
    tenant: str
    scopes: list[str]
    limits: Limits
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None


class MadeKey(Key, kw_only=True):
    key: Annotated[str, Meta(pattern=f"^{PATTERN}$", description="Shown this once, and kept nowhere.")]


class Keys(msgspec.Struct):
    keys: list[Key]
    next_cursor: str | None = None


EXAMPLE = {"name": "reports", "tenant": "acme", "scopes": ["jobs:write", "jobs:read"]}


@routes.post(
    "/keys",
    Scope.ADMIN_WRITE,
    "Make an API key",
    {201: Reply("The key; it is shown once", MadeKey)},
    request=Content(Annotated[NewKey, Meta(examples=[EXAMPLE])]),
)
async def create(
    request: Request, server: Server, caller: Caller, wanted: Annotated[NewKey, Depends(JsonBody(NewKey))]
) -> Answer[MadeKey]:
    made = await make_key(server.database, wanted, wanted.tenant or caller.tenant)
    log.info(
        "key.created",
        key_id=made.key_id,
        tenant=made.tenant,
        scopes=made.scopes,
        by=caller.key_id,
        request_id=request_id_of(request),
    )
    return Answer(made, 201, {"Cache-Control": "no-store"})


async def make_key(database: Database, wanted: NewKey, tenant: str) -> MadeKey:
    key = new_key()
    scopes = frozenset(wanted.scopes or USUAL_SCOPES)
    made = await api_keys.add(
        database,
        api_keys.NewKey(
            tenant,
            wanted.name,
            hash_of(key.encode()),
            [str(each) for each in ALL_SCOPES if each in scopes],
            api_keys.limits_text(wanted.limits or Limits()),
            wanted.expires_in_seconds,
        ),
    )
    assert made is not None  # noqa: S101  # nobody draws the same 178 bits twice
    return MadeKey(key=key, **msgspec.structs.asdict(_document(made)))


@routes.get(
    "/keys",
    Scope.ADMIN_READ,
    "List API keys",
    "Newest first; the keys themselves are not kept",
    errors=(422,),
)
async def list_keys(
    server: Server,
    _known: Annotated[None, Depends(KnownFilters())],
    tenant: str | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
) -> Keys:
    if cursor is not None and not is_id(cursor):
        raise invalid("cursor", "is not one of ours")
    if server.authenticator is not None:
        await server.authenticator.note_use()
    found = await api_keys.list_keys(server.database, cursor or LAST_ID, tenant, limit + 1)
    page = found[:limit]
    return Keys([_document(each) for each in page], page[-1].id if len(found) > limit else None)


@routes.get("/keys/{key_id}", Scope.ADMIN_READ, "Read an API key", "The key, without itself", errors=(404,))
async def get_key(server: Server, key_id: str) -> Key:
    found = await api_keys.get(server.database, key_id) if is_id(key_id) else None
    if found is None:
        raise NotFound("There is no such key.")
    return _document(found)


@routes.delete(
    "/keys/{key_id}",
    Scope.ADMIN_WRITE,
    "Revoke an API key: within a second it is refused by every process, and hung up on",
    {204: Reply("Revoked")},
    errors=(404,),
)
async def revoke(request: Request, server: Server, caller: Caller, key_id: str) -> None:
    if not is_id(key_id) or not await api_keys.revoke(server.database, key_id):
        raise NotFound("There is no such key.")
    log.info("key.revoked", key_id=key_id, by=caller.key_id, request_id=request_id_of(request))
    if server.authenticator is not None:
        server.authenticator.forget(key_id)


def _document(key: api_keys.ApiKey) -> Key:
    return Key(
        key_id=key.id,
        name=key.name,
        tenant=key.tenant,
        scopes=key.scopes,
        limits=msgspec.json.decode(key.limits, type=Limits),
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
    )
