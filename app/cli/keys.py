"""foreman keys: API keys."""

from typing import Annotated, Any

import typer

from app.cli import completion, ids
from app.cli.errors import CommandError
from app.cli.output import rows_in
from app.cli.session import Commands, ListByDefault, Session
from app.cli.times import seconds
from app.cli.values import number, pairs

commands = Commands(name="keys", help="API keys: who may call.", cls=ListByDefault)


@commands.remote("list")
def list_keys(session: Session) -> None:
    """All keys; the keys themselves are not kept."""
    found = _all(session)
    columns = "key_id name tenant scopes created_at expires_at last_used_at limits"
    session.out.rows({"keys": found}, found, columns, empty="No keys.")


def _all(session: Session) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        answer = session.call("GET", "/keys", query={"cursor": cursor})
        found += rows_in(answer, "keys")
        cursor = answer.get("next_cursor") if isinstance(answer, dict) else None
        if cursor is None:
            return found


@commands.remote("create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(help="What the key is for.", show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="jobs:write, jobs:read, jobs:work (these three if none is named), admin:read, admin:write."
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose jobs it sees; your own if none is named.")] = None,
    expires: Annotated[str | None, typer.Option(help="After 12h, 30d …")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="name=number, of requests_per_second, requests, connections, streams, long_polls, "
            "body_bytes and jobs."
        ),
    ] = None,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct",
            help="Straight into the database (FOREMAN_DATABASE_URL), without a server: for the first "
            "key, or when all are lost.",
        ),
    ] = False,
) -> None:
    """Make a key. It is shown once."""
    lifetime = seconds(expires or None, "--expires")
    limits = {each: number(value, "--limit") for each, value in pairs(limit, "--limit").items()}
    given = {
        "scopes": scope or None,
        "tenant": tenant or None,
        "expires_in_seconds": lifetime,
        "limits": limits or None,
    }
    body = {"name": name} | {field: value for field, value in given.items() if value is not None}
    answer = _make_directly(body) if direct else session.call("POST", "/keys", body=body)
    if session.out.as_json:
        session.out.json(answer)
    else:
        session.out.text(str(answer["key"]))
        session.out.aside("Keep it: it is not shown again.")


def _make_directly(body: dict[str, Any]) -> dict[str, Any]:
    """As `POST /keys` does it, by whoever may write to the database anyway."""
    import asyncio

    import msgspec

    from app.api.keys import NewKey, make_key
    from app.cli.serve import problems_told
    from app.config import load_settings
    from app.errors import ForemanError
    from app.jobs.shapes import decode
    from app.jobs.tenants import DEFAULT_TENANT
    from app.server.postgres import database
    from app.store.database import Database

    async def make(url: str) -> dict[str, Any]:
        wanted = decode(msgspec.json.encode(body), NewKey)
        opened = Database(url, size=2)
        await opened.open()
        try:
            made = await make_key(opened, wanted, wanted.tenant or DEFAULT_TENANT)
        finally:
            await opened.close()
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
        return found

    try:
        with problems_told(), database(load_settings()) as (ready, _):
            return asyncio.run(make(ready.database_url or ""))
    except ForemanError as problem:
        raise CommandError(problem.detail) from problem


@commands.remote("revoke")
def revoke(
    session: Session,
    key_id: Annotated[
        str,
        typer.Argument(
            help="Id of the key, whole or as `keys list` shows it.",
            show_default=False,
            autocompletion=completion.keys,
        ),
    ],
) -> None:
    """Take a key out of use."""
    if not ids.is_whole(key_id):
        key_id = ids.one_of(key_id, [key["key_id"] for key in _all(session)], "key")
    answer = session.call("DELETE", f"/keys/{key_id}")
    session.out.said(answer or {"key_id": key_id, "revoked": True}, f"{key_id} revoked")
