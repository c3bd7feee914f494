"""foreman doctor: is everything as it should be between here and the server?"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import typer

import foreman_client as fc
from app.cli.output import plain, rows_in
from app.cli.session import CommandError, Commands, Session, exit_code_of
from foreman_client.wire import without_password

# A Date header has whole seconds, and the answer took its time.
TOLERABLE_SKEW_SECONDS = 2.0
MARKS = {
    "ok": "[green]✓[/green]",
    "warning": "[yellow]![/yellow]",
    "failed": "[red]✗[/red]",
    "skipped": "[dim]–[/dim]",
}


@dataclass(frozen=True)
class Finding:
    check: str
    outcome: str
    detail: str
    exit_code: int = 0


# The outcome and what there is to say of it.
Check = Callable[[Session], tuple[str, str]]
commands = Commands()


@commands.remote("doctor")
def doctor(session: Session) -> None:
    """Check the server: reachable, version, database, API key, clocks, targets."""
    findings = _examine(session)
    server = without_password(session.foreman.url)
    if session.out.as_json:
        session.out.json({"server": server, "findings": [asdict(each) for each in findings]})
    else:
        session.out.console.print(f"Server {server}", markup=False)
        for each in findings:
            session.out.console.print(f" {MARKS[each.outcome]} {each.check}: ", end="")
            session.out.console.print(plain(each.detail), markup=False)
    if failed := [each for each in findings if each.outcome == "failed"]:
        raise typer.Exit(failed[0].exit_code)


def _examine(session: Session) -> list[Finding]:
    reachable = _finding("reachable", _reachable, session)
    if reachable.outcome == "failed":
        return [reachable]
    return [reachable, *(_finding(name, check, session) for name, check in CHECKS.items())]


def _finding(name: str, check: Check, session: Session) -> Finding:
    try:
        return Finding(name, *check(session))
    except (fc.ForemanError, CommandError) as error:
        return Finding(name, "failed", str(error), exit_code_of(error))


def _reachable(session: Session) -> tuple[str, str]:
    session.foreman.request("GET", "/healthz")
    return "ok", "it answers"


def _version(session: Session) -> tuple[str, str]:
    server = session.foreman.server_version()
    if server.mismatch is not None:
        return "warning", server.mismatch
    return "ok", f"server {server.version}, foreman-client {fc.__version__}"


def _database(session: Session) -> tuple[str, str]:
    answer = session.foreman.call("GET", "/readyz")
    revision = answer.get("revision")
    return "ok", "ready" + (f", schema at revision {revision}" if revision else "")


def _api_key(session: Session) -> tuple[str, str]:
    session.foreman.list_jobs(limit=1)
    return "ok", "accepted, or not needed"


def _clocks(session: Session) -> tuple[str, str]:
    date = session.foreman.request("GET", "/healthz").headers.get("date")
    if date is None:
        return "skipped", "the server does not tell its time"
    skew = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    if abs(skew) > TOLERABLE_SKEW_SECONDS:
        return "warning", f"this machine is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
    return "ok", "in step"


def _targets(session: Session) -> tuple[str, str]:
    try:
        found = rows_in(session.call("GET", "/targets"), "targets")
    except CommandError as error:
        return "skipped", str(error)
    except (fc.Unauthorized, fc.Forbidden):
        return "skipped", "this key may not see them"
    names = ", ".join(f"{each.get('name')} ({each.get('state', '?')})" for each in found)
    is_asleep = any(each.get("state") == "asleep" for each in found)
    return "warning" if is_asleep else "ok", names or "none; the built-in echo serves"


CHECKS: dict[str, Check] = {
    "version": _version,
    "database": _database,
    "API key": _api_key,
    "clocks": _clocks,
    "targets": _targets,
}
