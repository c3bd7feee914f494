"""events, logs and send: what a job went through, what its worker wrote, and how to tell it something."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

import foreman_client as fc
from app.cli.errors import CommandError
from app.cli.jobs import JobId
from app.cli.live import event_line, log_lines
from app.cli.session import Commands, Session
from app.cli.times import exact
from app.cli.values import text_of
from foreman_client.wire import decode, encode_for_people

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")]


commands = Commands()


@commands.remote("events")
def events(
    session: Session,
    job_id: JobId,
    follow: Follow = False,
    types: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    after: Annotated[int, typer.Option(help="Only those after this seq.", min=0)] = 0,
) -> None:
    """Show a job's events."""
    wanted = [name.strip() for name in types.split(",") if name.strip()] if types else None
    for event in _read(session, job_id, after=after, types=wanted, follow=follow):
        session.out.line(event_line(event), _line(event))


@commands.remote("logs")
def logs(session: Session, job_id: JobId, follow: Follow = False) -> None:
    """Show what the worker wrote."""
    for event in _read(session, job_id, after=0, types=["log"], follow=follow):
        if session.out.as_json:
            session.out.json_line(event_line(event))
            continue
        for line in log_lines(event):
            session.out.text(line)


@commands.remote("send")
def send(
    session: Session,
    job_id: JobId,
    type: Annotated[str, typer.Argument(help="Name of the event, such as approve.", show_default=False)],
    payload: Annotated[str, typer.Argument(help="JSON; @file and - are read.", show_default=False)] = "null",
) -> None:
    """Send an event to a job; its worker receives it."""
    try:
        content: Any = decode(text_of(payload))
    except ValueError as error:
        raise CommandError(f"the payload is not JSON: {error}") from None
    with session.route_of_job(job_id, "events"):
        seq = session.foreman.send_event(job_id, type, content)
    session.out.said({"job_id": job_id, "seq": seq}, f"{job_id} event {seq}")


def _read(
    session: Session, job_id: str, *, after: int, types: list[str] | None, follow: bool
) -> Iterator[fc.Event]:
    with session.route_of_job(job_id, "events"):
        yield from session.foreman.events(job_id, after=after, types=types, follow=follow)


def _line(event: fc.Event) -> str:
    at = exact(event.at) if event.at else ""
    data = "" if event.data in (None, {}) else encode_for_people(event.data)
    reason = f"({event.reason}) " if event.reason and event.reason != event.type else ""
    return f"{event.seq:>5} {at} {event.type} {reason}{data}".rstrip()
