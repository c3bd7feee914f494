"""What every command that speaks to a server shares: --server, --json, the client, and honest exit codes."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_args

import typer

import foreman_client as fc
from app.cli import completion, ids
from app.cli.errors import CommandError, ExitCode
from app.cli.output import Output, plain, rows_in
from app.cli.parameters import LightCommand, LightGroup

Command = TypeVar("Command", bound=Callable[..., None])
Row = TypeVar("Row")

# A person is waiting: long enough for a restart, short enough to tell them.
RETRY_SECONDS = 3.0
DEFAULT_URL = "http://127.0.0.1:8080"


def address_of(server: str | None) -> str:
    return (server or os.environ.get("FOREMAN_URL") or DEFAULT_URL).rstrip("/")


def client(server: str | None, **options: Any) -> "fc.Foreman":
    from app.cli.quick_transport import chosen

    url = address_of(server)
    return fc.Foreman(url, transport_class=chosen(url), **options)


class Session:
    def __init__(self, server: str | None, as_json: bool, utc: bool = False) -> None:
        self._server = server
        self.out = Output(as_json=as_json, utc=utc)

    @cached_property
    def foreman(self) -> "fc.Foreman":
        # Quoted, and made on demand: whoever only asks for help does not pay for it.
        return client(self._server, retry_seconds=RETRY_SECONDS)

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

    def job_id(self, text: str) -> str:
        """The whole id of a job, of which a table may have shown a short one."""
        return text if ids.is_whole(text) else ids.job_id(self.foreman, text)

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


class ListByDefault(LightGroup):
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
UTC = Annotated[
    bool, typer.Option("--utc", help="Moments as they are, in UTC, instead of how long ago they were.")
]

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="At most so many.")]
Since = Annotated[
    str | None, typer.Option(help="Made at or after: 1h, 2d (ago), or 2030-01-31T12:00.", show_default=False)
]
Until = Annotated[
    str | None, typer.Option(help="Made before: 1h, 2d (ago), or 2030-01-31T12:00.", show_default=False)
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", help="Only of this queue.", autocompletion=completion.queues, show_default=False
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind", "-k", help="Only of this kind.", autocompletion=completion.kinds, show_default=False
    ),
]


class MayBeShort:
    """Marks a parameter that is a job's id, and may be a short one."""


def option(name: str, default: object, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class Commands(typer.Typer):
    """The commands of one module: a group of that name, or without a name beside the others."""

    def remote(self, name: str) -> Callable[[Command], Command]:
        """A command that takes a Session gets --server, --json and --utc, and its errors become exit codes.

        A parameter that is a `JobId` comes to it whole.
        """

        def register(command: Command) -> Command:
            _, *own = inspect.signature(command, eval_str=True).parameters.values()
            may_be_short = [each.name for each in own if MayBeShort in get_args(each.annotation)]

            @functools.wraps(command)
            def run(server: str | None, json: bool, utc: bool, **options: Any) -> None:
                with exit_codes(), closing(Session(server, json, utc)) as session:
                    for each in may_be_short:
                        if options[each] is not None:
                            options[each] = session.job_id(options[each])
                    command(session, **options)

            shared = [option("server", None, SERVER), option("json", False, JSON), option("utc", False, UTC)]
            run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
            self.command(name, cls=LightCommand)(run)
            return command

        return register


@contextmanager
def exit_codes() -> Iterator[None]:
    try:
        yield
        # What is still to be written fails here, and not when Python ends.
        sys.stdout.flush()
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
