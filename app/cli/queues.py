"""foreman queues: look at queues and control them."""

from typing import Annotated, Any

import typer

from app.cli import completion
from app.cli.errors import CommandError
from app.cli.output import rows_in
from app.cli.session import Commands, ListByDefault, Session
from app.cli.values import json_object, settings

commands = Commands(name="queues", help="Look at queues and steer them.", cls=ListByDefault)

Name = Annotated[
    str, typer.Argument(help="Name of the queue.", show_default=False, autocompletion=completion.queues)
]
SETTINGS = (
    "max_depth max_running rate fair_by max_attempts backoff_seconds lease_seconds retention payload_schema "
    "key max_active max_queued when_full stale_policy"
)
COUNTED = "queued loading working done failed"


@commands.remote("list")
def list_queues(session: Session) -> None:
    """All queues with their counts."""
    answer = session.call("GET", "/queues")
    rows = [
        queue | (queue.get("counts") or {}) | (queue.get("ages") or {}) for queue in rows_in(answer, "queues")
    ]
    columns = f"name paused paused_by {COUNTED} oldest_queued_seconds gated_by max_depth max_running rate"
    session.out.rows(answer, rows, columns, empty="No queues.")


@commands.remote("show")
def show(session: Session, name: Name) -> None:
    """One queue: its settings, counts, ages and rates."""
    session.out.thing(session.call("GET", f"/queues/{name}"))


@commands.remote("set")
def set_queue(
    session: Session,
    name: Name,
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE …", help="max_depth=100 rate.limit=5", show_default=False),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", help="All settings as JSON; @file and - are read.")
    ] = None,
) -> None:
    """Change settings: `foreman queues set reports max_running=2 rate.limit=10 rate.per_seconds=60`.

    What is not named stays as it is; key=null takes a setting back. --config replaces them all.
    """
    changes = settings(given or [])
    replacement = json_object(config, "--config")
    if replacement is None and not changes:
        raise CommandError("nothing to set: give key=value, or --config")
    path = f"/queues/{name}"
    body = _merged(session.current(path, SETTINGS) if replacement is None else replacement, changes)
    session.out.said(session.call("PUT", path, body=body), f"{name} configured")


def _merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(old.get(name), dict)
        merged[name] = {**old[name], **value} if both else value
    return merged


@commands.remote("pause")
def pause(session: Session, name: Name) -> None:
    """Give out no more jobs of this queue; those that run go on."""
    session.out.said(session.call("POST", f"/queues/{name}/pause", body={}), f"{name} paused")


@commands.remote("resume")
def resume(session: Session, name: Name) -> None:
    """Give out jobs again."""
    session.out.said(session.call("POST", f"/queues/{name}/resume", body={}), f"{name} resumed")
