"""The commands that run the server itself: serve, work, migrate. Heavy imports happen inside them."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from app.config import Settings, SettingsError, load_settings

USAGE_ERROR = 2
# Secrets come by the environment only: a flag would show them to everyone who can list processes.
ENVIRONMENT_ONLY = frozenset({"secret_key", "webhook_secret"})


def register(cli: typer.Typer) -> None:
    cli.command("serve")(with_setting_flags(serve))
    cli.command("work")(with_setting_flags(work, leave_out=frozenset({"role"})))
    cli.command("migrate")(migrate)


def serve(**flags: Any) -> None:
    """Serve the API and run jobs. With no FOREMAN_DATABASE_URL it brings its own PostgreSQL."""
    _serve(_settings(**flags))


def work(**flags: Any) -> None:
    """Only run jobs: the same as `serve --role worker`."""
    _serve(_settings(**flags, role="worker"))


def migrate(
    database_url: Annotated[
        str | None, typer.Option(help="PostgreSQL to use (FOREMAN_DATABASE_URL).")
    ] = None,
) -> None:
    """Bring the database schema up to date. Safe to run from several places at once."""
    import asyncio

    from app.errors import Unavailable
    from app.server import ServeError
    from app.server.postgres import database
    from app.store.migrate import migrate as run
    from app.store.outage import words_of

    settings = _settings(database_url=database_url)
    try:
        with database(settings) as (ready, _):
            revision = asyncio.run(run(ready.database_url or ""))
    except ServeError as problem:
        typer.echo(f"foreman: {problem}", err=True)
        raise typer.Exit(1) from problem
    except Unavailable as problem:
        typer.echo(f"foreman: {problem} ({words_of(problem.__cause__ or problem)})", err=True)
        raise typer.Exit(1) from problem
    typer.echo(f"The schema is at revision {revision}.")


def _serve(settings: Settings) -> None:
    from app.server import ServeError
    from app.server.serve import serve as run

    try:
        run(settings)
    except SettingsError as problem:
        typer.echo(f"foreman: {problem}", err=True)
        raise typer.Exit(USAGE_ERROR) from problem
    except ServeError as problem:
        typer.echo(f"foreman: {problem}", err=True)
        raise typer.Exit(1) from problem


def _settings(**flags: Any) -> Settings:
    try:
        return load_settings(**flags)
    except SettingsError as problem:
        for line in str(problem).splitlines():
            typer.echo(f"foreman: {line}", err=True)
        raise typer.Exit(USAGE_ERROR) from problem


def with_setting_flags(
    command: Callable[..., None], leave_out: frozenset[str] = frozenset()
) -> Callable[..., None]:
    """The command with one flag per setting, made from the settings themselves so that none is forgotten."""

    def run(**flags: Any) -> None:
        command(**flags)

    run.__doc__ = command.__doc__
    parameters = []
    for name, field in Settings.model_fields.items():
        if name in ENVIRONMENT_ONLY | leave_out:
            continue
        option = typer.Option(f"--{name.replace('_', '-')}", help=_help(name, field), show_default=False)
        annotation = Annotated[_flag_type(field.annotation) | None, option]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _help(name: str, field: Any) -> str:
    default = "" if field.default is None else f" [{field.default}]"
    return f"{field.description}{default} (FOREMAN_{name.upper()})"


def _flag_type(annotation: Any) -> Any:
    """Numbers and paths as such; everything else as text, checked by the settings."""
    candidates = [each for each in get_args(annotation) or (annotation,) if each is not type(None)]
    for kind in (int, float, Path):
        if candidates == [kind]:
            return kind
    return str
