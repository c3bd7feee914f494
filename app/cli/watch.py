"""foreman watch: one job live, or all of them."""

import time
from typing import Annotated

import typer

import foreman_client as fc
from app.cli import completion
from app.cli.jobs import COLUMNS, row
from app.cli.live import follow
from app.cli.session import Commands, MayBeShort, Queue, Session
from foreman_client.wire import without_password

REFRESH_SECONDS = 1.0
SHOWN = 20


commands = Commands()


@commands.remote("watch")
def watch(
    session: Session,
    job_id: Annotated[
        str | None,
        typer.Argument(
            help="Id of the job; without one, the newest jobs.",
            show_default=False,
            autocompletion=completion.job_ids,
        ),
        MayBeShort,
    ] = None,
    queue: Queue = None,
) -> None:
    """Watch a job until it ends, or the newest jobs.

    Of a job text and progress as they come; of the newest jobs the table, until Ctrl-C.
    """
    if job_id is not None:
        job = follow(session, job_id)
        if not session.out.as_json:
            session.out.aside(f"{job.job_id} {job.state}")
    elif session.out.as_json:
        _changes(session, queue)
    else:
        _table(session, queue)


def _newest(session: Session, queue: str | None) -> list[fc.Job]:
    return session.foreman.list_jobs(queue=queue, limit=SHOWN).jobs


def _changes(session: Session, queue: str | None) -> None:
    """A line for each job whose log has grown since the last look."""
    seen: dict[str, int] = {}
    while True:
        for job in reversed(_newest(session, queue)):
            if seen.get(job.job_id) != job.seq:
                seen[job.job_id] = job.seq
                session.out.json_line(job.raw)
        time.sleep(REFRESH_SECONDS)


def _table(session: Session, queue: str | None) -> None:
    from rich.live import Live
    from rich.text import Text

    out = session.out
    title = f"{without_password(session.foreman.url)}  (Ctrl-C to leave)\n"
    with Live(console=out.console, auto_refresh=False, screen=out.is_terminal) as live:
        while True:
            rows = [row(job) for job in _newest(session, queue)]
            lines = out.table(rows, COLUMNS) if rows else ["No jobs."]
            live.update(Text.from_ansi("\n".join([title, *lines])), refresh=True)
            time.sleep(REFRESH_SECONDS)
