"""get, list, wait, cancel, retry, delete: jobs by their ids."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

import foreman_client as fc
from app.cli import completion
from app.cli.errors import CommandError
from app.cli.live import counted
from app.cli.output import Output, label, plain
from app.cli.session import (
    Commands,
    Kind,
    Limit,
    MayBeShort,
    Queue,
    Session,
    Since,
    Until,
    exit_code_of,
    up_to,
)
from app.cli.times import duration, seconds, span
from app.cli.values import pairs
from app.cli.waiting import wait_for

JobId = Annotated[
    str,
    typer.Argument(
        help="Id of the job, whole or as tables show it.",
        show_default=False,
        autocompletion=completion.job_ids,
    ),
    MayBeShort,
]
JobIds = Annotated[
    list[str],
    typer.Argument(
        help="Ids of the jobs, whole or as tables show them.",
        show_default=False,
        autocompletion=completion.job_ids,
    ),
]

# Reasons that say no more than the state beside them does.
SAID_BY_STATE = frozenset({"enqueue", "complete", "fail", "cancel", "expire", "skip", "supersede", "dismiss"})
COLUMNS = "job_id state work queue created_at took attempt note"
SHOWN = (
    "job_id state reason reason_since kind model queue queue_position priority attempt max_attempts "
    "deferrals worker target created_at run_at started_at completed_at deadline lease_expires_at parent_id "
    "concurrency_key metadata"
)


commands = Commands()


@commands.remote("get")
def get(session: Session, job_id: JobId) -> None:
    """Show a job."""
    job = session.foreman.get(job_id)
    if session.out.as_json:
        session.out.json(job.raw)
    else:
        show(session.out, job)


@commands.remote("list")
def list_jobs(  # noqa: PLR0913, PLR0917  # one parameter for each filter
    session: Session,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="Only in this state; any number of times.", autocompletion=completion.states
        ),
    ] = None,
    queue: Queue = None,
    kind: Kind = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Only of this model.", autocompletion=completion.models),
    ] = None,
    since: Since = None,
    until: Until = None,
    metadata: Annotated[list[str] | None, typer.Option(help="key=value, any number of times.")] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on from here.")] = None,
) -> None:
    """List jobs, newest first.

    Such as `foreman list --state failed --since 1h`.
    """
    begin, end = span(since, until)
    filters: dict[str, Any] = {
        "state": state or None, "queue": queue, "kind": kind, "model": model, "since": begin, "until": end,
        "metadata": pairs(metadata, "--metadata"),
    }  # fmt: skip

    def page(limit: int, cursor: str | None) -> tuple[list[fc.Job], str | None]:
        found = session.foreman.list_jobs(**filters, limit=limit, cursor=cursor)
        return found.jobs, found.next_cursor

    jobs, cursor = up_to(limit, cursor, page)
    answer = {"jobs": [job.raw for job in jobs], "next_cursor": cursor}
    session.out.rows(answer, [row(job) for job in jobs], COLUMNS, empty="No jobs.")
    if cursor and not session.out.as_json:
        session.out.aside(f"more: --cursor {cursor}")


@commands.remote("wait")
def wait(
    session: Session,
    job_id: JobId,
    timeout: Annotated[str | None, typer.Option(help="How long (30s, 5m); for ever if not given.")] = None,
) -> None:
    """Wait until a job has ended, and show its result. Exits 1 unless it is done."""
    wait_for(session, job_id, seconds(timeout, "--timeout"))


@commands.remote("cancel")
def cancel(
    session: Session,
    job_ids: JobIds,
    reason: Annotated[str | None, typer.Option(help="Kept with the job.")] = None,
) -> None:
    """Cancel jobs. A queued one is cancelled at once, a running one is told to stop."""
    _each(session, job_ids, lambda job_id: session.foreman.cancel(job_id, reason))


@commands.remote("retry")
def retry(session: Session, job_ids: JobIds) -> None:
    """Revive failed jobs under the same id; attempts start over."""
    _each(session, job_ids, session.foreman.retry)


@commands.remote("delete")
def delete(session: Session, job_ids: JobIds) -> None:
    """Remove jobs that have ended, with all they own."""
    _each(session, job_ids, session.foreman.delete)


def _each(session: Session, job_ids: list[str], act: Callable[[str], fc.Job | None]) -> None:
    """One after another; what goes wrong with one does not stop the others. The first error counts."""
    code = 0
    for named in job_ids:
        try:
            job_id = session.job_id(named)
            job = act(job_id)
        except (fc.NotFound, fc.Conflict, CommandError) as error:
            said = str(error)
            typer.echo(plain(f"foreman: {said}" if named in said else f"foreman: {named}: {said}"), err=True)
            code = code or exit_code_of(error)
            continue
        answer = job.raw if job else {"job_id": job_id, "deleted": True}
        session.out.line(answer, f"{job_id} {_standing(job)}")
    if code:
        raise typer.Exit(code)


def _standing(job: fc.Job | None) -> str:
    if job is None:
        return "deleted"
    # A running job that was told to stop is still what it was, until its worker says so.
    return job.state if job.terminal or job.state == "queued" else f"{job.state}, asked to stop"


def row(job: fc.Job) -> dict[str, Any]:
    reason = None if job.reason in SAID_BY_STATE else job.reason
    note = job.error.message if job.error and job.state != "done" else reason
    return {
        "job_id": job.job_id,
        "state": job.state,
        "work": f"{job.kind} {job.model}" if job.model else job.kind,
        "queue": job.queue,
        # The first is not worth a column.
        "attempt": job.attempt if job.attempt > 1 else None,
        "created_at": job.created_at,
        "took": _took(job),
        "note": note or _progress(job),
    }


def _took(job: fc.Job) -> str | None:
    if job.started_at is None or job.completed_at is None:
        return None
    return duration((job.completed_at - job.started_at).total_seconds())


def _durations(said: Mapping[str, Any]) -> str:
    """`queued 3 min 20 s, working 2.1 s`, and the numbers among them."""
    return ", ".join(
        f"{label(name)} {duration(value) if name.endswith('_seconds') else value}"
        for name, value in said.items()
        if value is not None
    )


def _progress(job: fc.Job) -> str | None:
    if job.progress is None:
        return None
    said = job.raw["progress"]
    return " ".join(part for part in (counted(said), job.progress.message or job.progress.step) if part)


def show(out: Output, job: fc.Job) -> None:
    hidden = {"deferrals": 0, "priority": 0}
    out.fields(
        [(name, job.raw.get(name)) for name in SHOWN.split() if job.raw.get(name) != hidden.get(name)]
        + [
            ("timings", _durations(job.timings)),
            ("usage", _durations(job.usage or {})),
            ("progress", _progress(job)),
            ("error", f"{job.error.code}: {job.error.message}" if job.error else None),
            ("artifacts", ", ".join(f"{each['name']} ({each['size']} bytes)" for each in job.artifacts)),
        ]
    )
    if job.text is not None:
        out.text("\n" + job.text)
    elif job.result is not None:
        out.text("")
        out.json(job.result)
