"""foreman targets: where models run."""

from typing import Annotated, Any

import typer

import foreman_client as fc
from app.cli.output import rows_in
from app.cli.session import CommandError, ListByDefault, Session, remote
from app.cli.values import text_of

group = typer.Typer(
    name="targets",
    help="Where models run: reachable or asleep, slots, resident models.",
    cls=ListByDefault,
)

Name = Annotated[str, typer.Argument(help="Name of the target.", show_default=False)]
COLUMNS = ("name", "dialect", "url", "state", "slots", "models", "resident", "breaker", "warning", "origin")
# What a target is made of; the rest of what is shown is how it is doing.
FIELDS = ("url", "dialect", "slots", "tags", "wake")
STDIN = "-"


@group.command("list")
@remote
def list_targets(session: Session) -> None:
    """All targets, and how they are doing."""
    answer = session.call("GET", "/targets")
    if session.out.as_json:
        session.out.json(answer)
        return
    session.out.rows(rows_in(answer, "targets"), COLUMNS, empty="No targets.")


@group.command("show")
@remote
def show(session: Session, name: Name) -> None:
    """One target."""
    answer = session.call("GET", f"/targets/{name}")
    if session.out.as_json:
        session.out.json(answer)
    else:
        session.out.fields(answer.items())


@group.command("set")
@remote
def set_target(  # noqa: PLR0913, PLR0917 - an option each
    session: Session,
    name: Name,
    url: Annotated[str | None, typer.Argument(help="http://laptop.local:11434", show_default=False)] = None,
    dialect: Annotated[str | None, typer.Option(help="ollama or openai.")] = None,
    slots: Annotated[int | None, typer.Option(help="How many jobs it runs at once.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A word to choose it by; repeatable.")] = None,
    token: Annotated[
        str | None, typer.Option(help="Its bearer token, from a file with @name or from stdin with -.")
    ] = None,
    wake_mac: Annotated[str | None, typer.Option(help="Wake it by a magic packet to this address.")] = None,
    wake_url: Annotated[str | None, typer.Option(help="Wake it by calling this URL.")] = None,
) -> None:
    """Make a target or change it: `foreman targets set laptop http://laptop.local:11434 --slots 2`.

    What is not named stays as it is.
    """
    if token is not None and token != STDIN and not token.startswith("@"):
        # Whoever lists processes or reads the shell's history would see it.
        raise CommandError("--token: give it from a file (@name) or from stdin (-)")
    if wake_mac is not None and wake_url is not None:
        raise CommandError("give --wake-mac or --wake-url, not both")
    changes: dict[str, Any] = {
        "url": url,
        "dialect": dialect,
        "slots": slots,
        "tags": tag,
        "token": None if token is None else text_of(token).strip(),
        "wake": {"mac": wake_mac} if wake_mac else {"url": wake_url} if wake_url else None,
    }
    body = _current(session, name) | {field: value for field, value in changes.items() if value is not None}
    if "url" not in body:
        raise CommandError(f"there is no target {name} yet: give its URL")
    session.answer(session.call("PUT", f"/targets/{name}", body=body), f"{name} configured")


def _current(session: Session, name: str) -> dict[str, Any]:
    """The target as it is: the server takes it as a whole, but keeps a token that is not spoken of."""
    try:
        target = session.call("GET", f"/targets/{name}")
    except fc.NotFound:
        return {}
    return {field: target[field] for field in FIELDS if target.get(field) is not None}


@group.command("remove")
@remote
def remove(session: Session, name: Name) -> None:
    """Forget a target; its jobs wait for another that has their model, or fail."""
    answer = session.call("DELETE", f"/targets/{name}")
    session.answer(answer or {"name": name, "removed": True}, f"{name} removed")
