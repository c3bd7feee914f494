"""foreman schedules: periodic jobs."""

from typing import Annotated

import typer

from app.cli.output import rows_in
from app.cli.session import CommandError, ListByDefault, Session, remote
from app.cli.values import json_object

group = typer.Typer(name="schedules", help="Periodic jobs.", cls=ListByDefault)

Name = Annotated[str, typer.Argument(help="Name of the schedule.", show_default=False)]


@group.command("list")
@remote
def list_schedules(session: Session) -> None:
    """All schedules."""
    answer = session.call("GET", "/schedules")
    if session.out.as_json:
        session.out.json(answer)
        return
    columns = ("name", "cron", "timezone", "next_at", "last_at", "last_outcome", "last_error", "job")
    session.out.rows(rows_in(answer, "schedules"), columns, empty="No schedules.")


@group.command("set")
@remote
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
    answer = session.call("PUT", f"/schedules/{name}", body=body)
    session.out.json(answer) if session.out.as_json else session.out.text(f"{name} scheduled")


@group.command("remove")
@remote
def remove(session: Session, name: Name) -> None:
    """Remove a schedule; jobs that it made stay."""
    answer = session.call("DELETE", f"/schedules/{name}")
    session.answer(answer or {"name": name, "removed": True}, f"{name} removed")
