"""foreman targets: where models run."""

from typing import Annotated, Any

import typer

from app.cli import completion
from app.cli.errors import CommandError
from app.cli.session import Commands, ListByDefault, Session
from app.cli.values import secret

commands = Commands(
    name="targets",
    help="Where models run: reachable or asleep, slots, resident models.",
    cls=ListByDefault,
)

Name = Annotated[
    str,
    typer.Argument(help="Name of the target.", show_default=False, autocompletion=completion.targets),
]
COLUMNS = "name state url dialect slots resident models breaker origin warning"
# What a target is made of; the rest of what is shown is how it is doing.
FIELDS = "url dialect slots tags wake"


@commands.remote("list")
def list_targets(session: Session) -> None:
    """All targets, and how they are doing."""
    session.show_list("/targets", COLUMNS, empty="No targets.")


@commands.remote("show")
def show(session: Session, name: Name) -> None:
    """One target."""
    session.out.thing(session.call("GET", f"/targets/{name}"))


@commands.remote("set")
def set_target(  # noqa: PLR0913, PLR0917 - an option each
    session: Session,
    name: Name,
    url: Annotated[str | None, typer.Argument(help="http://laptop.local:11434", show_default=False)] = None,
    dialect: Annotated[str | None, typer.Option(help="ollama or openai.")] = None,
    slots: Annotated[int | None, typer.Option(help="How many jobs it runs at once.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A word to choose it by; repeatable.")] = None,
    token: Annotated[
        str | None,
        typer.Option(help="Its bearer token: from a file (@name), stdin (-) or a variable (env:NAME)."),
    ] = None,
    wake_mac: Annotated[str | None, typer.Option(help="Wake it by a magic packet to this address.")] = None,
    wake_url: Annotated[str | None, typer.Option(help="Wake it by calling this URL.")] = None,
) -> None:
    """Make a target or change it: `foreman targets set laptop http://laptop.local:11434 --slots 2`.

    What is not named stays as it is.
    """
    if wake_mac is not None and wake_url is not None:
        raise CommandError("give --wake-mac or --wake-url, not both")
    changes: dict[str, Any] = {
        "url": url,
        "dialect": dialect,
        "slots": slots,
        "tags": tag,
        "token": secret(token, "--token"),
        "wake": {"mac": wake_mac} if wake_mac else {"url": wake_url} if wake_url else None,
    }
    # The server takes a target as a whole, but keeps a token that is not spoken of.
    path = f"/targets/{name}"
    body = session.current(path, FIELDS) | {
        field: value for field, value in changes.items() if value is not None
    }
    if "url" not in body:
        raise CommandError(f"there is no target {name} yet: give its URL")
    session.out.said(session.call("PUT", path, body=body), f"{name} configured")


@commands.remote("remove")
def remove(session: Session, name: Name) -> None:
    """Forget a target; its jobs wait for another that has their model, or fail."""
    answer = session.call("DELETE", f"/targets/{name}")
    session.out.said(answer or {"name": name, "removed": True}, f"{name} removed")
