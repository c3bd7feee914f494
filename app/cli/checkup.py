"""What `foreman doctor` sees of the machine that a server runs on. Heavy imports happen inside."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from app.cli.doctor import Finding, Said, found, skew_said
from app.cli.errors import CommandError, ExitCode
from foreman_client.wire import without_password

if TYPE_CHECKING:
    from app.config import Settings
    from app.store.checkup import Checkup

# Of the disk with the data: below the first it is wrong, below the second it soon will be.
FULL_BYTES, FULL_PART = 256 * 1024 * 1024, 0.01
NEARLY_BYTES, NEARLY_PART = 2 * 1024 * 1024 * 1024, 0.05
# With fewer files a server soon hangs up on people.
FEW_FILES = 4096
Answer = TypeVar("Answer")
SOCKET = ".s.PGSQL.5432"


def local_findings() -> tuple[str | None, list[Finding]]:
    """Where the settings are from, and what was found; None where there are none."""
    from app.config import SettingsError, load_settings

    try:
        settings = load_settings()
    except SettingsError as problem:
        said = "; ".join(str(problem).splitlines())
        wrong = Finding("settings", "failed", said, "correct the variables in this shell or unit file")
        return "This machine's settings", [wrong]
    is_embedded = settings.database_url is None
    if is_embedded and not (settings.data_dir / "postgres").is_dir():
        return None, []
    where = str(settings.data_dir) if is_embedded else without_password(settings.database_url or "")
    checks: dict[str, Callable[[], Said]] = {
        "settings": lambda: _settings(settings),
        "disk": lambda: _disk(settings.data_dir, is_embedded=is_embedded),
        "files": lambda: _files(settings.max_connections),
    }
    findings = [found(name, check) for name, check in checks.items()]
    return f"This machine, for {where}", findings + _database(settings)


def _settings(settings: "Settings") -> Said:
    """What `serve` would refuse, and wake URLs that the guard would."""
    from app.config import SettingsError
    from app.targets.config import from_environment
    from app.webhooks.outgoing import LOOPBACK, Outgoing

    if settings.database_url is None and settings.auth == "off":
        # As the embedded development mode has it.
        allowed = ",".join(filter(None, (settings.outbound_allow, LOOPBACK)))
        settings = settings.model_copy(update={"outbound_allow": allowed})
    try:
        policy = Outgoing(settings).policy
        targets = from_environment(settings.ollama_url, settings.ollama_slots, settings.targets)
    except SettingsError as problem:
        return "failed", str(problem), "correct that variable"
    blocked = [
        f"{each.name} ({reason})"
        for each in targets
        if each.wake is not None and each.wake.url and (reason := policy.check_url(each.wake.url))
    ]
    if blocked:
        advice = "list those hosts in FOREMAN_OUTBOUND_ALLOW"
        return "failed", f"the outbound guard blocks the wake URL of {', '.join(blocked)}", advice
    return "ok", "all can be used"


def _disk(data_dir: Path, *, is_embedded: bool) -> Said:
    if not is_embedded:
        return "skipped", "the database has its own; /readyz tells when it is full"
    disk = shutil.disk_usage(data_dir)
    said = f"{_size(disk.free)} of {_size(disk.total)} free where {data_dir} is"
    advice = "make room; retention and FOREMAN_CHATTER_DAYS decide what is kept"
    if disk.free < min(FULL_BYTES, FULL_PART * disk.total):
        return "failed", said, advice
    return "warning" if disk.free < min(NEARLY_BYTES, NEARLY_PART * disk.total) else "ok", said, advice


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GB" if number >= 2**30 else f"{number / 2**20:.0f} MB"


def _files(wanted: int) -> Said:
    """A server raises its limit as far as it may: what counts is how far that is."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return "ok", "as many as connections are allowed"
    said = f"{hard:,} may be open, and FOREMAN_MAX_CONNECTIONS is {wanted:,}"
    if hard >= FEW_FILES:
        return "ok", said
    return "warning", said, "raise it: LimitNOFILE= of the unit, ulimits of the container, or `ulimit -Hn`"


def _database(settings: "Settings") -> list[Finding]:
    url = _url(settings)
    if url is None:
        idle = f"PostgreSQL in {settings.data_dir} is not running; `foreman serve` starts it"
        return [Finding("database", "skipped", idle)]
    checkups: list[Checkup] = []

    def schema() -> Said:
        from app.store.checkup import examine
        from app.store.migrate import newest_revision

        checkups.append(_asked(lambda: asyncio.run(examine(url))))
        checkup, newest = checkups[0], newest_revision()
        if checkup.revision is None or checkup.revision < newest:
            said = f"the schema is at revision {checkup.revision or 'none'}, and this version needs {newest}"
            return "failed", said, "run `foreman migrate`, or restart the server"
        if checkup.revision > newest:
            said = f"the schema is at revision {checkup.revision}, of a version newer than this ({newest})"
            return "warning", said, "bring this installation up to date"
        return "ok", f"PostgreSQL {checkup.version}, schema at revision {checkup.revision}"

    findings = [found("schema", schema)]
    if not checkups:
        return findings
    skew = -checkups[0].ahead_seconds
    findings.append(found("database clock", lambda: skew_said(skew, "this machine", "the database")))
    findings.append(found("notifications", lambda: _notifications(settings, url)))
    return findings


def _url(settings: "Settings") -> str | None:
    if settings.database_url is not None:
        return settings.database_url
    from app.embedded import EmbeddedPostgres

    embedded = EmbeddedPostgres(settings.data_dir)
    return embedded.dsn if (embedded.socket_dir / SOCKET).exists() else None


def _notifications(settings: "Settings", url: str) -> Said:
    from app.store.checkup import hears_notifications

    if settings.listen == "off":
        return "ok", "off: processes look for work by themselves"
    listening = settings.listen_database_url or url
    if _asked(lambda: asyncio.run(hears_notifications(listening))):
        return "ok", "they arrive"
    return (
        "warning",
        "LISTEN hears nothing: a PgBouncer is in between. All is found by polling, only later",
        "give a direct way to PostgreSQL in FOREMAN_LISTEN_DATABASE_URL, or set FOREMAN_LISTEN=off",
    )


def _asked(ask: Callable[[], Answer]) -> Answer:
    from app.errors import Unavailable
    from app.store.outage import PostgresError, words_of

    try:
        return ask()
    except (Unavailable, PostgresError) as problem:
        said = f"{problem} ({words_of(problem.__cause__ or problem)})"
        raise CommandError(said, ExitCode.UNREACHABLE) from problem
