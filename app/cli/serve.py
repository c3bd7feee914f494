"""The commands that run the server itself: serve, work, migrate. Heavy imports happen inside them."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from app.cli.session import Commands, option
from app.config import Settings, SettingsError, load_settings

USAGE_ERROR = 2
# Secrets come by the environment only: a flag would show them to everyone who can list processes.
ENVIRONMENT_ONLY = frozenset({"secret_key", "webhook_secret"})


commands = Commands()


def with_setting_flags(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """One flag per setting, made from the settings themselves so that none is forgotten."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                option(name, None, _flag(name, field))
                for name, field in Settings.model_fields.items()
                if name not in ENVIRONMENT_ONLY.union(leave_out)
            ]
        )
        return command

    return add


def _flag(name: str, field: Any) -> Any:
    default = "" if field.default is None else f" [{field.default}]"
    text = f"{field.description}{default} (FOREMAN_{name.upper()})"
    flag = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False)
    return Annotated[_flag_type(field.annotation) | None, flag]


def _flag_type(annotation: Any) -> Any:
    """Numbers and paths as such; everything else as text, checked by the settings."""
    candidates = [each for each in get_args(annotation) or (annotation,) if each is not type(None)]
    return candidates[0] if candidates in ([int], [float], [Path]) else str


@commands.command("serve")
@with_setting_flags()
def serve(**flags: Any) -> None:
    """Serve the API and run jobs. With no FOREMAN_DATABASE_URL it brings its own PostgreSQL."""
    with problems_told():
        settings = load_settings(**flags)
        _refuse_work_for_nobody(settings)
        from app.server.serve import serve as run  # what is wrong with the settings is said at once

        run(settings)


def _refuse_work_for_nobody(settings: Settings) -> None:
    if settings.role == "worker" and settings.database_url is None:
        raise SettingsError(
            "FOREMAN_DATABASE_URL is not set: a worker runs the jobs of a database that servers submit to, "
            "and one of its own would stay empty.\n"
            "Give it the servers' database (FOREMAN_DATABASE_URL or --database-url); or run `foreman serve`, "
            "which serves and works in one process."
        )


@commands.command("work")
@with_setting_flags("role")
def work(**flags: Any) -> None:
    """Only run jobs, of a database that servers submit to: the same as `serve --role worker`."""
    serve(**flags, role="worker")


@commands.command("migrate")
def migrate(
    database_url: Annotated[
        str | None, typer.Option(help="PostgreSQL to use (FOREMAN_DATABASE_URL).")
    ] = None,
) -> None:
    """Bring the database schema up to date. Safe to run from several places at once."""
    import asyncio

    from app.errors import Unavailable
    from app.server.postgres import database
    from app.store.migrate import migrate as run
    from app.store.outage import words_of

    try:
        with problems_told(), database(load_settings(database_url=database_url)) as (ready, _):
            revision = asyncio.run(run(ready.database_url or ""))
    except Unavailable as problem:
        typer.echo(f"foreman: {problem} ({words_of(problem.__cause__ or problem)})", err=True)
        raise typer.Exit(1) from problem
    typer.echo(f"The schema is at revision {revision}.")


@contextmanager
def problems_told() -> Iterator[None]:
    from app.server import ServeError

    try:
        yield
    except SettingsError as problem:
        for line in str(problem).splitlines():
            typer.echo(f"foreman: {line}", err=True)
        raise typer.Exit(USAGE_ERROR) from problem
    except ServeError as problem:
        typer.echo(f"foreman: {problem}", err=True)
        raise typer.Exit(1) from problem
