"""foreman schedules: periodic jobs."""

from typing import Annotated

import typer

from app.cli import completion
from app.cli.errors import CommandError
from app.cli.session import Commands, ListByDefault, Session
from app.cli.values import json_object

commands = Commands(name="schedules", help="Periodic jobs.", cls=ListByDefault)

Name = Annotated[
    str,
    typer.Argument(help="Name of the schedule.", show_default=False, autocompletion=completion.schedules),
]


@commands.remote("list")
def list_schedules(session: Session) -> None:
    """All schedules."""
    columns = "name cron timezone next_at last_at last_outcome last_error job"
    session.show_list("/schedules", columns, empty="No schedules.")


@commands.remote("set")
def set_schedule(
    session: Session,
    name: Name,
    cron: Annotated[
        str, typer.Argument(help="Five fields, or six with leading seconds.", show_default=False)
    ],
    job: Annotated[str, typer.Option("--job", help="Body of POST /jobs as JSON; @file and - are read.")],
    timezone: Annotated[str, typer.Option(help="Such as Europe/Berlin.")] = "UTC",
) -> None:
    """Make or change a schedule: `foreman schedules set nightly "0 3 * * *" --job '{"kind": "report"}'`."""
    body = {"cron": cron, "timezone": timezone, "job": json_object(job, "--job")}
    if not body["job"]:
        raise CommandError("--job is empty")
    session.out.said(session.call("PUT", f"/schedules/{name}", body=body), f"{name} scheduled")


@commands.remote("remove")
def remove(session: Session, name: Name) -> None:
    """Remove a schedule; jobs that it made stay."""
    answer = session.call("DELETE", f"/schedules/{name}")
    session.out.said(answer or {"name": name, "removed": True}, f"{name} removed")
