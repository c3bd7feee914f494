"""What every command that speaks to a server shares: --server, --json, the client, and honest exit codes."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

import foreman_client as fc
from app.cli.output import Output, plain, rows_in

Command = TypeVar("Command", bound=Callable[..., None])
Row = TypeVar("Row")

# A person is waiting: long enough for a restart, short enough to tell them.
RETRY_SECONDS = 3.0


class ExitCode(IntEnum):
    """Documented in docs/cli.md; scripts rely on them."""

    DONE = 0
    JOB_UNSUCCESSFUL = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    UNAUTHORIZED = 5
    CONFLICT = 6
    TOO_MUCH = 7
    TIMED_OUT = 8
    INTERRUPTED = 130


class CommandError(Exception):
    """A command that cannot go on: said in one line on stderr."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


class Session:
    def __init__(self, server: str | None, as_json: bool) -> None:
        self._server = server
        self.out = Output(as_json=as_json)

    @cached_property
    def foreman(self) -> "fc.Foreman":
        # Quoted, and made on demand: the HTTP client takes longer to load than all the rest.
        return fc.Foreman(self._server, retry_seconds=RETRY_SECONDS)

    def close(self) -> None:
        if "foreman" in self.__dict__:
            self.foreman.close()

    def call(self, method: str, path: str, **request: Any) -> Any:
        """A route by its path; says so when this server does not have it at all."""
        try:
            return self.foreman.request(method, path, **request).json()
        except (fc.NotFound, fc.MethodNotAllowed):
            collection = "/" + path.split("/")[1]
            if not self._has(collection):
                raise CommandError(f"this server has no {collection}", ExitCode.NOT_FOUND) from None
            raise

    def show_list(self, path: str, columns: str, *, empty: str, query: dict[str, Any] | None = None) -> None:
        """Show a whole collection."""
        answer = self.call("GET", path, query=query)
        self.out.rows(answer, rows_in(answer, path.removeprefix("/")), columns, empty=empty)

    def current(self, path: str, fields: str) -> dict[str, Any]:
        """What has been set so far, for a PUT that takes it as a whole; nothing if it is new."""
        try:
            found = self.call("GET", path)
        except fc.NotFound:
            return {}
        return {name: found[name] for name in fields.split() if found.get(name) is not None}

    @contextmanager
    def route_of_job(self, job_id: str, route: str) -> Iterator[None]:
        """Not found: the job, or on a server that is not up to it the route?"""
        try:
            yield
        except (fc.NotFound, fc.MethodNotAllowed):
            self.foreman.get(job_id)
            raise CommandError(f"this server has no /jobs/{{id}}/{route}", ExitCode.NOT_FOUND) from None

    def _has(self, collection: str) -> bool:
        try:
            self.foreman.call("GET", collection)
        except (fc.NotFound, fc.MethodNotAllowed):
            return False
        return True


def up_to(
    limit: int, cursor: str | None, page: Callable[[int, str | None], tuple[Sequence[Row], str | None]]
) -> tuple[list[Row], str | None]:
    """So many rows, page by page, and the cursor to go on from.

    A page may be short, even empty, and not be the last: the server looks at so many jobs at a time.
    """
    rows: list[Row] = []
    while len(rows) < limit:
        found, cursor = page(limit - len(rows), cursor)
        rows += found
        if cursor is None:
            break
    return rows, cursor


class ListByDefault(TyperGroup):
    """`foreman queues --json` is short for `foreman queues list --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


SERVER = Annotated[
    str | None,
    typer.Option("--server", "-s", help="Address of the server (FOREMAN_URL).", show_default=False),
]
JSON = Annotated[bool, typer.Option("--json", help="JSON on stdout, for machines; streams as JSON lines.")]

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=200)]


def option(name: str, default: object, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class Commands(typer.Typer):
    """The commands of one module: a group of that name, or without a name beside the others."""

    def remote(self, name: str) -> Callable[[Command], Command]:
        """A command that takes a Session gets --server and --json, and its errors become exit codes."""

        def register(command: Command) -> Command:
            @functools.wraps(command)
            def run(*args: Any, server: str | None = None, json: bool = False, **options: Any) -> None:
                with exit_codes(), closing(Session(server, json)) as session:
                    command(session, *args, **options)

            _, *own = inspect.signature(command, eval_str=True).parameters.values()
            shared = [option("server", None, SERVER), option("json", False, JSON)]
            run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
            self.command(name)(run)
            return command

        return register


@contextmanager
def exit_codes() -> Iterator[None]:
    try:
        yield
    except (fc.ForemanError, CommandError) as error:
        typer.echo(plain(f"foreman: {error}"), err=True)
        raise typer.Exit(exit_code_of(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        # `foreman list | head`: whoever read us has seen enough. Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.DONE) from None


_EXIT_CODES: dict[ExitCode, tuple[type[fc.ForemanError], ...]] = {
    ExitCode.JOB_UNSUCCESSFUL: (fc.JobUnsuccessful,),
    ExitCode.TIMED_OUT: (fc.WaitTimeout,),
    ExitCode.UNREACHABLE: (fc.Unreachable, fc.Unavailable),
    ExitCode.UNAUTHORIZED: (fc.Unauthorized, fc.Forbidden),
    ExitCode.NOT_FOUND: (fc.NotFound,),
    ExitCode.CONFLICT: (fc.Conflict,),
    ExitCode.TOO_MUCH: (fc.QueueFull, fc.RateLimited),
}


def exit_code_of(error: Exception) -> ExitCode:
    if isinstance(error, CommandError):
        return error.code
    if type(error) is fc.ApiError:
        return ExitCode.UNREACHABLE  # a 500: it answered, but not as a server should
    return next((code for code, kinds in _EXIT_CODES.items() if isinstance(error, kinds)), ExitCode.USAGE)
