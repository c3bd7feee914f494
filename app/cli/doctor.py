"""foreman doctor: is everything as it should be between here and the server, and where the server runs?

What can be asked of the server is asked over HTTP. On the machine that has the server's settings (its
database in FOREMAN_DATABASE_URL, or the data folder of `foreman serve`) those are looked at as well: see
checkup.py.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import typer

import foreman_client as fc
from app.cli.errors import CommandError, ExitCode
from app.cli.output import Output, has_colours, plain, rows_in
from app.cli.session import Commands, Session, exit_code_of
from app.cli.table import painted
from app.cli.times import ago, duration
from foreman_client.wire import without_password

# A Date header has whole seconds, and the answer took its time; leases are some ten seconds long.
TOLERABLE_SKEW_SECONDS = 2.0
HARMFUL_SKEW_SECONDS = 10.0
MARKS = {"ok": ("✓", "32"), "warning": ("!", "33"), "failed": ("✗", "31"), "skipped": ("–", "2")}
# How many deliveries are looked at for those that the guard refused, and how many names are told.
LOOKED = 50
TOLD = 5


@dataclass(frozen=True)
class Finding:
    """`failed`: something does not work. `warning`: it does, but not as one would want it."""

    check: str
    outcome: str
    detail: str
    # What to do about it.
    advice: str = ""
    exit_code: int = 0


# The outcome, what there is to say of it, and what to do.
Said = tuple[str, str] | tuple[str, str, str]
Check = Callable[[Session], Said]
commands = Commands()


@commands.remote("doctor")
def doctor(session: Session) -> None:
    """Say what is wrong, and what to do about it.

    Of the server: reachable, version, database and migrations, API key, clocks, targets, webhooks. Where its
    settings are, also of this machine: settings, disk, file limit, database, notifications, outbound guard.

    Exit code 0 if nothing is wrong; a warning is not.
    """
    from app.cli.checkup import local_findings

    remote = _examine(session)
    place, local = local_findings()
    server = without_password(session.foreman.url)
    if session.out.as_json:
        answer = {"server": server, "findings": [asdict(each) for each in remote + local], "place": place}
        session.out.json(answer)
    else:
        _tell(session.out, f"Server {server}", remote)
        _tell(session.out, place or "", local)
        if place is None:
            session.out.aside(
                "The server's machine can be looked at where its settings are: run this there, too."
            )
    if failed := [each for each in remote + local if each.outcome == "failed"]:
        raise typer.Exit(failed[0].exit_code or ExitCode.JOB_UNSUCCESSFUL)


def _tell(out: Output, title: str, findings: list[Finding]) -> None:
    if title:
        out.text(title)
    colours = has_colours(sys.stdout)
    for each in findings:
        mark, style = MARKS[each.outcome]
        sys.stdout.write(f" {painted(mark, style, colours)} {plain(f'{each.check}: {each.detail}')}\n")
        if each.advice and each.outcome != "ok":
            out.text(f"   → {each.advice}")


def _examine(session: Session) -> list[Finding]:
    reachable = found("reachable", lambda: _reachable(session))
    if reachable.outcome == "failed":
        return [reachable]
    return [reachable, *(found(name, lambda check=check: check(session)) for name, check in CHECKS.items())]  # type: ignore[misc]


def found(name: str, check: Callable[[], Said]) -> Finding:
    try:
        return Finding(name, *check())
    except (fc.ForemanError, CommandError) as error:
        return Finding(name, "failed", str(error), _advice(error), exit_code_of(error))


def _advice(error: Exception) -> str:
    said = str(error)
    if isinstance(error, fc.Unreachable):
        return "start it there with `foreman serve`, or name its address with --server or FOREMAN_URL"
    if isinstance(error, fc.Unauthorized):
        return "put a key into FOREMAN_API_KEY; `foreman keys create NAME --direct` makes one at the server"
    if isinstance(error, fc.Forbidden):
        return "use a key with that scope: `foreman keys create NAME --scope …`"
    if "migrate" in said:
        return "run `foreman migrate` with the server's FOREMAN_DATABASE_URL, or restart the newest server"
    if "disk is full" in said:
        return "make room on the database's disk; retention and FOREMAN_CHATTER_DAYS decide what is kept"
    if isinstance(error, fc.Unavailable):
        return "look at the server's log: `database.unavailable` says why; it connects again by itself"
    return ""


def _reachable(session: Session) -> Said:
    session.foreman.request("GET", "/healthz")
    return "ok", "it answers"


def _version(session: Session) -> Said:
    server = session.foreman.server_version()
    if server.mismatch is not None:
        return "warning", server.mismatch, "install the client and the server of the same release"
    return "ok", f"server {server.version}, foreman-client {fc.__version__}"


def _database(session: Session) -> Said:
    answer = session.foreman.call("GET", "/readyz")
    revision = answer.get("revision")
    return "ok", "ready" + (f", schema at revision {revision}" if revision else "")


def _api_key(session: Session) -> Said:
    try:
        session.foreman.list_jobs(limit=1)
    except fc.Forbidden as error:
        return "warning", f"accepted, but: {error}", _advice(error)
    try:
        session.foreman.call("GET", "/targets")
    except (fc.Unauthorized, fc.Forbidden):
        return "ok", "accepted; without admin:read, so that targets and webhooks are not looked at"
    except fc.ForemanError:
        pass  # told where targets are looked at
    return "ok", "accepted, or not needed"


def _clocks(session: Session) -> Said:
    asked = time.time()
    date = session.foreman.request("GET", "/healthz").headers.get("date")
    if date is None:
        return "skipped", "the server does not tell its time"
    skew = (asked + time.time()) / 2 - parsedate_to_datetime(date).timestamp()
    return skew_said(skew, "this machine", "the server")


def skew_said(skew: float, here: str, there: str) -> Said:
    if abs(skew) <= TOLERABLE_SKEW_SECONDS:
        return "ok", "in step"
    said = f"{here} is {duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} {there}"
    harm = "failed" if abs(skew) > HARMFUL_SKEW_SECONDS else "warning"
    return (
        harm,
        said,
        "let both keep time by NTP (timedatectl, chrony); signatures of webhooks are refused else",
    )


def _targets(session: Session) -> Said:
    targets = _seen(session, "/targets", "targets")
    if isinstance(targets, str):
        return "skipped", targets
    said, advice = [], []
    for each in targets:
        name, state = each.get("name"), each.get("state", "?")
        words = f"{name} ({state}"
        if state == "asleep":
            since = each.get("asleep_since")
            words += f" since {ago(since)}" if since else ""
            advice.append(
                f"wake {name}, or see that {each.get('url')} answers"
                + (
                    ""
                    if each.get("wake")
                    else f"; `foreman targets set {name} --wake-mac …` lets Foreman wake it"
                )
            )
        if each.get("breaker") == "open":
            words += ", breaker open"
            advice.append(f"{name} broke off too often: look at its own log")
        if each.get("warning"):
            words += f": {each['warning']}"
        said.append(f"{words})")
    is_wrong = bool(advice) or any(each.get("warning") for each in targets)
    names = ", ".join(said) or "none; the built-in echo serves"
    return "warning" if is_wrong else "ok", names, "; ".join(advice[:TOLD])


def _webhooks(session: Session) -> Said:
    """Deliveries that the outbound guard refused, or that nobody took."""
    refused = _seen(session, "/webhooks", "deliveries", {"state": "refused", "limit": LOOKED})
    if isinstance(refused, str):
        return "skipped", refused
    given_up = _seen(session, "/webhooks", "deliveries", {"state": "given_up", "limit": LOOKED})
    if refused:
        hosts = _hosts(refused)
        return (
            "warning",
            f"the outbound guard refuses {hosts}: {refused[0].get('last_error') or 'not allowed'}",
            "if they are meant, list them in the server's FOREMAN_OUTBOUND_ALLOW",
        )
    if given_up and not isinstance(given_up, str):
        last = given_up[0].get("last_error") or given_up[0].get("last_status")
        return (
            "warning",
            f"given up on {_hosts(given_up)}: {last}",
            "mend the receiver, then `foreman webhooks JOB_ID --redeliver DELIVERY_ID`",
        )
    return "ok", "none was refused or given up on"


def _hosts(deliveries: list[dict[str, Any]]) -> str:
    hosts = list(dict.fromkeys(str(each.get("host", "?")) for each in deliveries))
    return ", ".join(hosts[:TOLD]) + (f" and {len(hosts) - TOLD} more" if len(hosts) > TOLD else "")


def _seen(
    session: Session, path: str, name: str, query: dict[str, Any] | None = None
) -> list[dict[str, Any]] | str:
    """What there is, or why it cannot be seen."""
    try:
        return rows_in(session.call("GET", path, query=query), name)
    except CommandError as error:
        return str(error)
    except (fc.Unauthorized, fc.Forbidden):
        return "this key may not see them"


CHECKS: dict[str, Check] = {
    "version": _version,
    "database": _database,
    "API key": _api_key,
    "clocks": _clocks,
    "targets": _targets,
    "webhooks": _webhooks,
}
