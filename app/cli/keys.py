"""foreman keys: API keys."""

from typing import Annotated

import typer

from app.cli.session import Commands, ListByDefault, Session
from app.cli.values import seconds

commands = Commands(name="keys", help="API keys (for a server that has them).", cls=ListByDefault)


@commands.remote("list")
def list_keys(session: Session) -> None:
    """All keys; the keys themselves are not kept."""
    columns = "key_id id name tenant scopes created_at expires_at last_used_at last_used"
    session.show_list("/keys", columns, empty="No keys.")


@commands.remote("create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(help="What the key is for.", show_default=False)],
    scope: Annotated[
        list[str] | None, typer.Option(help="jobs:write, jobs:read, jobs:work, admin:read, admin:write.")
    ] = None,
    tenant: Annotated[str | None, typer.Option()] = None,
    expires: Annotated[str | None, typer.Option(help="After 12h, 30d …")] = None,
) -> None:
    """Make a key. It is shown once."""
    lifetime = seconds(expires or None, "--expires")
    given = {"scopes": scope or None, "tenant": tenant or None, "expires_in_seconds": lifetime}
    body = {"name": name} | {field: value for field, value in given.items() if value is not None}
    answer = session.call("POST", "/keys", body=body)
    if session.out.as_json:
        session.out.json(answer)
    else:
        session.out.text(str(answer["key"]))
        session.out.note("[dim]Keep it: it is not shown again.[/dim]")


@commands.remote("revoke")
def revoke(
    session: Session, key_id: Annotated[str, typer.Argument(help="Id of the key.", show_default=False)]
) -> None:
    """Take a key out of use."""
    answer = session.call("DELETE", f"/keys/{key_id}")
    session.out.said(answer or {"key_id": key_id, "revoked": True}, f"{key_id} revoked")
