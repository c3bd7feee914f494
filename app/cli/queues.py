"""foreman queues: look at queues and control them."""

from typing import Annotated, Any

import typer

import foreman_client as fc
from app.cli.output import rows_in
from app.cli.session import CommandError, ListByDefault, Session, remote
from app.cli.values import json_object, settings

group = typer.Typer(name="queues", help="Look at queues and control them.", cls=ListByDefault)

Name = Annotated[str, typer.Argument(help="Name of the queue.", show_default=False)]
SETTINGS = (
    "max_depth", "max_running", "rate", "fair_by", "max_attempts", "backoff_seconds", "lease_seconds",
    "retention", "payload_schema", "key", "max_active", "max_queued", "when_full", "stale_policy",
)  # fmt: skip
COUNTED = ("queued", "loading", "working", "done", "failed")


@group.command("list")
@remote
def list_queues(session: Session) -> None:
    """All queues with their counts."""
    answer = session.call("GET", "/queues")
    if session.out.as_json:
        session.out.json(answer)
        return
    rows = [
        {
            **queue,
            **{state: (queue.get("counts") or {}).get(state) for state in COUNTED},
            "oldest_queued_seconds": (queue.get("ages") or {}).get("oldest_queued_seconds"),
        }
        for queue in rows_in(answer, "queues")
    ]
    columns = (
        "name", "paused", *COUNTED, "oldest_queued_seconds", "gated_by", "max_depth", "max_running", "rate",
    )  # fmt: skip
    session.out.rows(rows, columns, empty="No queues.")


@group.command("show")
@remote
def show(session: Session, name: Name) -> None:
    """One queue: its settings, counts, ages and rates."""
    answer = session.call("GET", f"/queues/{name}")
    if session.out.as_json:
        session.out.json(answer)
    else:
        session.out.fields(answer.items())


@group.command("set")
@remote
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
    body = _merged(_current(session, name) if replacement is None else replacement, changes)
    session.answer(session.call("PUT", f"/queues/{name}", body=body), f"{name} configured")


def _current(session: Session, name: str) -> dict[str, Any]:
    """The settings as they are: the server takes them as a whole."""
    try:
        queue = session.call("GET", f"/queues/{name}")
    except fc.NotFound:
        return {}
    return {setting: queue[setting] for setting in SETTINGS if queue.get(setting) is not None}


def _merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(old.get(name), dict)
        merged[name] = {**old[name], **value} if both else value
    return merged


@group.command("pause")
@remote
def pause(session: Session, name: Name) -> None:
    """Give out no more jobs of this queue; those that run go on."""
    session.answer(session.call("POST", f"/queues/{name}/pause", body={}), f"{name} paused")


@group.command("resume")
@remote
def resume(session: Session, name: Name) -> None:
    """Give out jobs again."""
    session.answer(session.call("POST", f"/queues/{name}/resume", body={}), f"{name} resumed")
