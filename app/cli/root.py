"""All commands put together.

Only what the command line names is loaded: `foreman get` does not wait for the server's settings, nor for the
other commands. Without a command that is known here (help, completion of its name) it is all of them.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from app import __version__
from app.cli.parameters import LightGroup

# Each module has its `commands`, in the order of the help: one group, or these beside the others.
MODULES: dict[str, tuple[str, ...]] = {
    "submit": ("submit",),
    "jobs": ("get", "list", "wait", "cancel", "retry", "delete"),
    "why": ("why",),
    "watch": ("watch",),
    "events": ("events", "logs", "send"),
    "resources": ("workers", "usage"),
    "doctor": ("doctor",),
    "dead": ("dead",),
    "keys": ("keys",),
    "queues": ("queues",),
    "schedules": ("schedules",),
    "secrets": ("secrets",),
    "targets": ("targets",),
    "webhooks": ("webhooks",),
    "serve": ("serve", "work", "migrate"),
}
# Set by the script that `--install-completion` leaves with the shell.
COMPLETING = "_FOREMAN_COMPLETE"
HELP = """Foreman: hand it work, hang up, be told when it is done.

The server is found by --server or FOREMAN_URL (http://127.0.0.1:8080), the API key in FOREMAN_API_KEY. Tables
show ids in short; every command takes them so.

Exit codes: 0 done · 1 the job failed, was cancelled or expired · 2 wrong usage or input · 3 not found ·
4 server unreachable or unavailable · 5 not authorised · 6 conflict with the job's state · 7 queue full or too
many requests · 8 timed out waiting · 130 interrupted.
"""


def build(arguments: Sequence[str]) -> typer.Typer:
    cli = typer.Typer(
        name="foreman",
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    cli.callback(cls=LightGroup)(_root)
    named = next((word for word in arguments if not word.startswith("-")), None)
    home = [module for module, names in MODULES.items() if named in names]
    for module in home or MODULES:
        _add(cli, module)
    return cli


def arguments_of(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """What was typed; where the shell asks for completion, what was typed so far, but for the last word."""
    typed = environment.get("_TYPER_COMPLETE_ARGS") or environment.get("COMP_WORDS")
    if argv or typed is None or COMPLETING not in environment:
        return argv
    try:
        words = shlex.split(typed)[1:]
    except ValueError:
        return ()
    return words if typed.endswith((" ", "\n")) else words[:-1]


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
