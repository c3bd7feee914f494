"""foreman dead: dead letters, the jobs that failed for good."""

from typing import Annotated, Any

import typer

from app.cli import completion
from app.cli.errors import CommandError
from app.cli.output import rows_in
from app.cli.session import Commands, Kind, Limit, ListByDefault, Queue, Session, Since, Until, up_to
from app.cli.times import span
from foreman_client.wire import timestamp

commands = Commands(name="dead", help="Dead letters: jobs that failed for good.", cls=ListByDefault)

# Thousands of dead letters take a moment; after this the operation goes on by itself.
BULK_WAIT_SECONDS = 20

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids of dead letters, whole or as tables show them.",
        show_default=False,
        autocompletion=completion.dead_letters,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what a filter would touch.")]


@commands.remote("list")
def list_dead(
    session: Session,
    queue: Queue = None,
    kind: Kind = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
) -> None:
    """Dead letters, newest first."""
    filters = _filters(queue, kind, since, until)

    def page(limit: int, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        query = {**filters, "limit": limit, "cursor": cursor}
        answer = session.call("GET", "/dead-letters", query=query)
        return rows_in(answer, "dead_letters"), answer.get("next_cursor")

    letters, cursor = up_to(limit, None, page)
    rows = [{**letter, "error": (letter.get("error") or {}).get("message")} for letter in letters]
    columns = "job_id kind model queue completed_at attempt error"
    answer = {"dead_letters": letters, "next_cursor": cursor}
    session.out.rows(answer, rows, columns, empty="No dead letters.")


@commands.remote("replay")
def replay(  # one parameter for each filter
    session: Session,
    ids: Ids = None,
    queue: Queue = None,
    kind: Kind = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
) -> None:
    """Put dead letters back into their queues, by id or by filter; attempts start over."""
    _settle(session, "replay", ids, _filters(queue, kind, since, until), dry_run)


@commands.remote("dismiss")
def dismiss(  # one parameter for each filter
    session: Session,
    ids: Ids = None,
    queue: Queue = None,
    kind: Kind = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
) -> None:
    """Give up on dead letters for good, by id or by filter."""
    _settle(session, "dismiss", ids, _filters(queue, kind, since, until), dry_run)


def _filters(queue: str | None, kind: str | None, since: str | None, until: str | None) -> dict[str, str]:
    begin, end = span(since, until)
    given = {
        "queue": queue,
        "kind": kind,
        "since": timestamp(begin) if begin else None,
        "until": timestamp(end) if end else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _settle(
    session: Session, verb: str, ids: list[str] | None, chosen: dict[str, str], dry_run: bool
) -> None:
    if bool(ids) == bool(chosen):
        raise CommandError(
            f"name the dead letters to {verb}, or a filter (--queue, --kind, --since, --until), not both"
        )
    if ids and dry_run:
        raise CommandError("--dry-run goes with a filter")
    for named in ids or ():
        job_id = session.job_id(named)
        answer = session.call("POST", f"/dead-letters/{job_id}/{verb}", body={})
        session.out.line(answer, f"{job_id} {verb}ed")
    if chosen:
        body = {"filter": chosen, "dry_run": dry_run}
        wait = {"Prefer": f"wait={BULK_WAIT_SECONDS}"}
        session.out.thing(session.call("POST", f"/dead-letters/{verb}", body=body, headers=wait))
