"""workers, usage: things to look at."""

import re
from typing import Annotated

import typer

from app.cli.session import Commands, Session
from app.cli.times import past

DAY = re.compile(r"\d{4}-\d\d-\d\d")
commands = Commands()


@commands.remote("workers")
def workers(session: Session) -> None:
    """Who has been claiming jobs."""
    columns = "name worker alive running last_seen last_seen_at queues kinds concurrency version"
    session.show_list("/workers", columns, empty="No workers.")


@commands.remote("usage")
def usage(
    session: Session,
    since: Annotated[str | None, typer.Option(help="First day: 2030-01-31, or 7d (ago).")] = None,
    until: Annotated[str | None, typer.Option(help="Last day: 2030-01-31, or 7d (ago).")] = None,
    by: Annotated[str | None, typer.Option(help="`key`: the sums of each key.")] = None,
) -> None:
    """Tokens and seconds by caller, model and day (in UTC)."""
    query = {"since": _day(since, "--since"), "until": _day(until, "--until"), "by": by}
    columns = (
        "day caller tenant name key_id model jobs prompt_tokens completion_tokens load_seconds "
        "prefill_seconds decode_seconds"
    )
    session.show_list("/usage", columns, empty="Nothing used.", query=query)


def _day(text: str | None, option: str) -> str | None:
    """Days are kept in UTC; one that is written as such is taken as it is."""
    if text is None or DAY.fullmatch(text.strip()):
        return text
    moment = past(text, option)
    return None if moment is None else moment.date().isoformat()
