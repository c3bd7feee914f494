"""foreman watch: one job live, or all of them."""

import time
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table

import foreman_client as fc
from app.cli.jobs import COLUMNS, row
from app.cli.live import follow
from app.cli.output import cell
from app.cli.session import Commands, Session
from foreman_client.wire import without_password

REFRESH_SECONDS = 1.0
SHOWN = 20


commands = Commands()


@commands.remote("watch")
def watch(
    session: Session,
    job_id: Annotated[
        str | None, typer.Argument(help="Id of the job; without one, the newest jobs.", show_default=False)
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")] = None,
) -> None:
    """Watch a job until it ends, its text and progress as they come; or the newest jobs, until Ctrl-C."""
    if job_id is not None:
        job = follow(session, job_id)
        if not session.out.as_json:
            session.out.note(f"[dim]{job.job_id} {job.state}[/dim]")
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
    columns = COLUMNS.split()
    with Live(
        console=session.out.console, auto_refresh=False, screen=session.out.console.is_terminal
    ) as live:
        while True:
            server = without_password(session.foreman.url)
            table = Table(box=None, header_style="bold", title=f"{server}  (Ctrl-C to leave)")
            for name in columns:
                table.add_column(name.replace("_", " "), no_wrap=name == "job_id")
            for job in _newest(session, queue):
                shown = row(job)
                table.add_row(*(cell(name, shown.get(name)) for name in columns))
            live.update(table, refresh=True)
            time.sleep(REFRESH_SECONDS)
