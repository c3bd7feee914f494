"""workers, usage: things to look at."""

from typing import Annotated

import typer

from app.cli.session import Commands, Session

commands = Commands()


@commands.remote("workers")
def workers(session: Session) -> None:
    """Who has been claiming jobs."""
    columns = "name worker queues kinds concurrency running version last_seen last_seen_at"
    session.show_list("/workers", columns, empty="No workers.")


@commands.remote("usage")
def usage(
    session: Session,
    since: Annotated[str | None, typer.Option(help="First day (2030-01-31).")] = None,
    until: Annotated[str | None, typer.Option(help="The last day.")] = None,
    by: Annotated[str | None, typer.Option(help="`key`: the sums of each key.")] = None,
) -> None:
    """Tokens and seconds by caller, model and day."""
    columns = (
        "day caller tenant name key_id model jobs prompt_tokens completion_tokens load_seconds "
        "prefill_seconds decode_seconds"
    )
    query = {"since": since, "until": until, "by": by}
    session.show_list("/usage", columns, empty="Nothing used.", query=query)
