"""workers, usage: things to look at."""

from typing import Annotated

import typer

from app.cli.output import rows_in
from app.cli.session import Session, remote


def register(cli: typer.Typer) -> None:
    for name, command in (
        ("workers", workers),
        ("usage", usage),
    ):
        cli.command(name)(command)


@remote
def workers(session: Session) -> None:
    """Who has been claiming jobs."""
    columns = (
        "name",
        "worker",
        "queues",
        "kinds",
        "concurrency",
        "running",
        "version",
        "last_seen",
        "last_seen_at",
    )
    _listed(session, "/workers", columns, "No workers.")


@remote
def usage(
    session: Session,
    since: Annotated[str | None, typer.Option(help="First day (2030-01-31).")] = None,
    until: Annotated[str | None, typer.Option(help="Day after the last.")] = None,
) -> None:
    """Tokens and seconds by caller, model and day."""
    columns = (
        "day", "caller", "tenant", "model", "jobs", "prompt_tokens", "completion_tokens", "load_seconds",
        "prefill_seconds", "decode_seconds",
    )  # fmt: skip
    _listed(session, "/usage", columns, "Nothing used.", {"since": since, "until": until})


def _listed(
    session: Session,
    path: str,
    columns: tuple[str, ...],
    empty: str,
    query: dict[str, str | None] | None = None,
) -> None:
    answer = session.call("GET", path, query=query)
    if session.out.as_json:
        session.out.json(answer)
    else:
        session.out.rows(rows_in(answer, path.removeprefix("/")), columns, empty=empty)
