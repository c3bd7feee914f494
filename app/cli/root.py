"""All commands put together.

The server's own commands bring its settings along, which take longer to load than a whole `foreman get`: they
are left out when the command line names one of the others.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from app import __version__

# Each has its `commands`; in the order of the help.
MODULES = (
    "submit", "jobs", "why", "watch", "events", "resources", "doctor",
    "dead", "keys", "queues", "schedules", "secrets", "targets", "webhooks",
)  # fmt: skip
HELP = """Foreman: hand it work, hang up, be told when it is done.

The server is found by --server or FOREMAN_URL (http://127.0.0.1:8080), the API key in FOREMAN_API_KEY.

Exit codes: 0 done · 1 the job failed, was cancelled or expired · 2 wrong usage or input · 3 not found ·
4 server unreachable or unavailable · 5 not authorised · 6 conflict with the job's state · 7 queue full or too
many requests · 8 timed out waiting · 130 interrupted.
"""


def build(arguments: Sequence[str]) -> typer.Typer:
    cli = typer.Typer(
        name="foreman", help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    cli.callback()(_root)
    for module in MODULES:
        _add(cli, module)
    named = next((word for word in arguments if not word.startswith("-")), None)
    if named not in {each.name for each in cli.registered_commands + cli.registered_groups}:
        _add(cli, "serve")
    return cli


def _add(cli: typer.Typer, module: str) -> None:
    commands: typer.Typer = import_module(f"app.cli.{module}").commands
    if isinstance(commands.info.name, str):
        cli.add_typer(commands, name=commands.info.name)
    else:
        cli.registered_commands += commands.registered_commands


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foreman {__version__}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass
