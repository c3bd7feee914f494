"""foreman secrets: what is sealed in the database, and with which master key. Heavy imports happen inside."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from app.cli.errors import CommandError, ExitCode
from app.cli.output import Output
from app.cli.session import Commands, exit_codes

if TYPE_CHECKING:
    from app.secretbox import SecretBox
    from app.store.database import Database
    from app.store.secrets import Rotation, Tally

Found = TypeVar("Found")

commands = Commands(
    name="secrets",
    help="Secrets at rest: checking them, and replacing FOREMAN_SECRET_KEY. Works on the database itself.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, for machines.")]
Url = Annotated[
    str | None, typer.Option(help="PostgreSQL to use (FOREMAN_DATABASE_URL).", show_default=False)
]
# In which the database has learnt where its secrets are.
FIRST_REVISION = "0018"


@commands.command("check")
def check(json: Json = False, database_url: Url = None) -> None:
    """Open every stored secret: which key has sealed how many of what, and which cannot be read.

    Exit code 1 if any cannot be read.
    """
    from app.store.secrets import examine

    with exit_codes():
        tallies, box = _on_database(database_url, examine)
        out = Output(as_json=json)
        is_well = not any(each.unreadable for each in tallies)
        keys = [] if box is None else [key.hex() for key in box.key_ids]
        rows = [_shown(each, keys) for each in tallies]
        out.rows(
            {"keys": keys, "secrets": rows, "readable": is_well},
            rows,
            "secrets what key is unreadable why examples",
            empty="Nothing is sealed.",
        )
        if not is_well:
            raise CommandError("some secrets cannot be read; nothing was changed", ExitCode.JOB_UNSUCCESSFUL)


def _shown(tally: "Tally", keys: list[str]) -> dict[str, Any]:
    key = tally.key.hex()
    place = keys.index(key) if key in keys else None
    return {
        "kind": tally.kind.name,
        "what": tally.kind.words(tally.secrets),
        "key": key or None,
        "is": "in the clear" if not key else {None: "unknown", 0: "current"}.get(place, "old"),
        "secrets": tally.secrets,
        "unreadable": tally.unreadable,
        "why": tally.why,
        "examples": tally.examples,
    }


@commands.command("rotate")
def rotate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be resealed.")] = False,
    json: Json = False,
    database_url: Url = None,
) -> None:
    """Seal everything with the first key of FOREMAN_SECRET_KEY=new,old. Safe beside servers, and twice.

    Exit code 1 if something cannot be read, or is still sealed with an old key.
    """
    from app.store import secrets

    async def run(database: "Database", box: "SecretBox | None") -> "list[Rotation]":
        if box is None:
            raise CommandError("FOREMAN_SECRET_KEY is not set: give it as new,old")
        return await secrets.rotate(database, box, dry_run=dry_run)

    with exit_codes():
        rotations, box = _on_database(database_url, run)
        out = Output(as_json=json)
        keys = [] if box is None else [key.hex() for key in box.key_ids]
        is_done = not any(each.remaining or each.unreadable for each in rotations)
        following = _what_next(rotations, keys, dry_run=dry_run)
        answer = {
            "key": keys[0],
            "dry_run": dry_run,
            "kinds": [_became(each, keys) for each in rotations],
            "done": is_done and not dry_run,
            "next": following,
        }
        if json:
            out.json(answer)
        else:
            for each in rotations:
                out.text(_line(each, dry_run=dry_run))
                for tally in each.unreadable:
                    out.text(
                        f"  {tally.unreadable:,} cannot be read, sealed with the key {tally.key.hex()}: "
                        f"{tally.why} ({', '.join(tally.examples)})"
                    )
            out.text(following)
        if not is_done:
            raise typer.Exit(1)


def _became(rotation: "Rotation", keys: list[str]) -> dict[str, Any]:
    return {
        "kind": rotation.kind.name,
        "what": rotation.kind.many,
        "resealed": rotation.resealed,
        "current": rotation.current,
        "passed": rotation.passed,
        "remaining": rotation.remaining,
        "unreadable": [_shown(each, keys) for each in rotation.unreadable],
    }


def _line(rotation: "Rotation", *, dry_run: bool) -> str:
    verb = "would be resealed" if dry_run else "resealed"
    said = f"{rotation.kind.many}: {rotation.resealed:,} {verb}, {rotation.current:,} were right already"
    if rotation.passed:
        said += f", {rotation.passed:,} were changed by others meanwhile"
    return said + (f", {rotation.remaining:,} are sealed with an old key still" if rotation.remaining else "")


def _what_next(rotations: "list[Rotation]", keys: list[str], *, dry_run: bool) -> str:
    if any(each.unreadable for each in rotations):
        return "Not all can be read: give the missing keys as well, and run this again. Remove no key yet."
    if dry_run:
        return "Nothing was changed. Without --dry-run it will be."
    if any(each.remaining for each in rotations):
        return (
            "A server still seals with an old key: restart all of them with the new one first, then run this "
            "again. Remove no key yet."
        )
    if len(keys) == 1:
        return (
            f"All is sealed with the only key there is, {keys[0]}. To replace it: FOREMAN_SECRET_KEY=new,old"
        )
    return (
        f"All is sealed with the key {keys[0]}. Now remove the old key: set FOREMAN_SECRET_KEY to the first "
        "one alone, and restart all servers."
    )


@commands.command("forget")
def forget(
    keys: Annotated[
        list[str], typer.Argument(help="Ids of keys that are lost for good.", show_default=False)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
    database_url: Url = None,
) -> None:
    """Give up what a lost key has sealed, so that servers start without it. It can never be read again.

    Webhooks of such jobs are not sent unsigned instead: they fail. Targets need their tokens anew.
    """
    from app.store import secrets

    lost = [_key_id(each) for each in keys]
    if not yes:
        typer.confirm(f"Give up all that was sealed with {', '.join(keys)}?", abort=True, err=True)

    async def run(database: "Database", box: "SecretBox | None") -> dict[str, int]:
        if box is not None and set(lost) & set(box.key_ids):
            raise CommandError("this key is not lost: FOREMAN_SECRET_KEY has it")
        sums = dict.fromkeys((kind.many for kind in secrets.KINDS), 0)
        for key in lost:
            for kind, number in (await secrets.give_up(database, key)).items():
                sums[kind.many] += number
        return sums

    with exit_codes():
        sums, _ = _on_database(database_url, run)
        words = "\n".join(f"{what}: {number:,} given up" for what, number in sums.items())
        Output(as_json=json).said({"given_up": sums}, words)


def _key_id(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 4:
        raise typer.BadParameter(f"{text} is no id of a key: eight digits, as `foreman secrets check` shows")
    return key


def _on_database(
    url: str | None, work: "Callable[[Database, SecretBox | None], Awaitable[Found]]"
) -> "tuple[Found, SecretBox | None]":
    """Do this with the database that `foreman serve` would use, and the keys that it would have."""
    from app.config import load_settings
    from app.server.postgres import database
    from app.store.database import Database
    from app.telemetry import configure_logging
    from app.webhooks.outgoing import Outgoing

    # What is logged goes to stderr, out of the way of the data.
    configure_logging("warning", "auto")
    with _problems_told(), database(load_settings(database_url=url)) as (settings, _):
        box = Outgoing(settings).box
        pool = Database(settings.database_url or "", pooled=True, size=2)

        async def run() -> Found:
            await pool.open()
            try:
                await _demand_schema(pool)
                return await work(pool, box)
            finally:
                await pool.close()

        return asyncio.run(run()), box


async def _demand_schema(database: "Database") -> None:
    from app.store.migrate import current_revision

    async with database.connection() as connection:
        revision = await current_revision(connection)
    if revision is None or revision < FIRST_REVISION:
        raise CommandError(
            "the schema of this database is older than this version: run `foreman migrate` first"
        )


@contextmanager
def _problems_told() -> Iterator[None]:
    from app.config import SettingsError
    from app.errors import Unavailable
    from app.server import ServeError
    from app.store.outage import words_of

    try:
        yield
    except SettingsError as problem:
        raise CommandError(str(problem)) from problem
    except ServeError as problem:
        raise CommandError(str(problem), ExitCode.JOB_UNSUCCESSFUL) from problem
    except Unavailable as problem:
        said = f"{problem} ({words_of(problem.__cause__ or problem)})"
        raise CommandError(said, ExitCode.JOB_UNSUCCESSFUL) from problem
