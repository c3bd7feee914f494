"""foreman dead: dead letters, the jobs that failed for good."""

from typing import Annotated, Any

import typer

from app.cli.output import rows_in
from app.cli.session import CommandError, Commands, Limit, ListByDefault, Session, up_to

commands = Commands(name="dead", help="Dead letters: jobs that failed for good.", cls=ListByDefault)

# Thousands of dead letters take a moment; after this the operation goes on by itself.
BULK_WAIT_SECONDS = 20

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.", show_default=False)]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="All of this queue.")]
Kind = Annotated[str | None, typer.Option("--kind", "-k", help="All of this kind.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what a filter would touch.")]


@commands.remote("list")
def list_dead(
    session: Session,
    queue: Queue = None,
    kind: Kind = None,
    limit: Limit = 50,
) -> None:
    """Dead letters, newest first."""

    def page(limit: int, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        query = {"queue": queue, "kind": kind, "limit": limit, "cursor": cursor}
        answer = session.call("GET", "/dead-letters", query=query)
        return rows_in(answer, "dead_letters"), answer.get("next_cursor")

    letters, cursor = up_to(limit, None, page)
    rows = [{**letter, "error": (letter.get("error") or {}).get("message")} for letter in letters]
    columns = "job_id kind model queue attempt completed_at error"
    answer = {"dead_letters": letters, "next_cursor": cursor}
    session.out.rows(answer, rows, columns, empty="No dead letters.")


@commands.remote("replay")
def replay(
    session: Session, ids: Ids = None, queue: Queue = None, kind: Kind = None, dry_run: DryRun = False
) -> None:
    """Put dead letters back into their queues, by id or by filter; attempts start over."""
    _settle(session, "replay", ids, {"queue": queue, "kind": kind}, dry_run)


@commands.remote("dismiss")
def dismiss(
    session: Session, ids: Ids = None, queue: Queue = None, kind: Kind = None, dry_run: DryRun = False
) -> None:
    """Give up on dead letters for good, by id or by filter."""
    _settle(session, "dismiss", ids, {"queue": queue, "kind": kind}, dry_run)


def _settle(
    session: Session, verb: str, ids: list[str] | None, filters: dict[str, str | None], dry_run: bool
) -> None:
    chosen: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if bool(ids) == bool(chosen):
        raise CommandError(f"name the dead letters to {verb}, or a filter (--queue, --kind), not both")
    if ids and dry_run:
        raise CommandError("--dry-run goes with a filter")
    for job_id in ids or ():
        answer = session.call("POST", f"/dead-letters/{job_id}/{verb}", body={})
        session.out.line(answer, f"{job_id} {verb}ed")
    if chosen:
        body = {"filter": chosen, "dry_run": dry_run}
        wait = {"Prefer": f"wait={BULK_WAIT_SECONDS}"}
        session.out.thing(session.call("POST", f"/dead-letters/{verb}", body=body, headers=wait))
