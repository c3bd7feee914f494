"""webhooks: deliveries of a job or of all jobs, sending one again, and a receiver for trying things out."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli import completion
from app.cli.errors import CommandError
from app.cli.jobs import JobId
from app.cli.output import Output, rows_in
from app.cli.session import SERVER, Commands, Limit, Session, address_of, exit_codes
from foreman_client.wire import without_password

OF_JOB = "job"
COLUMNS = "delivery_id type state tries last_status next_try_at delivered_at last_error"


class _JobOrCommand(TyperGroup):
    """`foreman webhooks 01J…` is short for `foreman webhooks job 01J…`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = [OF_JOB, *args]
        return super().resolve_command(ctx, args)


commands = Commands(
    name="webhooks",
    help="Webhook deliveries: `foreman webhooks JOB_ID` shows those of a job.",
    cls=_JobOrCommand,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.remote(OF_JOB)
def of_job(
    session: Session,
    job_id: JobId,
    redeliver: Annotated[
        str | None, typer.Option(metavar="DELIVERY_ID", help="Send this one again: its id, or its seq.")
    ] = None,
) -> None:
    """The webhook deliveries of a job, and how they went."""
    path = f"/jobs/{job_id}/webhooks"
    if redeliver is not None:
        # However its job was written.
        delivery_id = f"{job_id}-{redeliver.rpartition('-')[2]}"
        answer = session.foreman.call("POST", f"{path}/{delivery_id}/redeliver", body={})
        session.out.said(answer, f"{delivery_id} is sent again")
        return
    with session.route_of_job(job_id, "webhooks"):
        answer = session.foreman.call("GET", path)
    _show(session.out, answer, COLUMNS)


@commands.remote("list")
def list_all(
    session: Session,
    host: Annotated[str | None, typer.Option(help="Only this receiver: host, or host:port.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="pending, delivered, given_up or refused.", autocompletion=completion.delivery_states
        ),
    ] = None,
    limit: Limit = 50,
) -> None:
    """The webhook deliveries of all jobs, those of the newest jobs first."""
    query = {"host": host, "state": state, "limit": str(limit)}
    answer = session.call("GET", "/webhooks", query=query)
    _show(session.out, answer, COLUMNS.replace("type", "host type"))


def _show(out: Output, answer: Any, columns: str) -> None:
    out.rows(answer, rows_in(answer, "deliveries"), columns, empty="No deliveries.")


@commands.command("listen")
def listen(  # one parameter for each flag
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 9000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    secret: Annotated[
        str | None,
        typer.Option(
            envvar="FOREMAN_WEBHOOK_SECRET",
            help="whsec_… to verify with, several separated by commas; one is made when there is none.",
            show_envvar=True,
        ),
    ] = None,
    status: Annotated[int, typer.Option(help="What to answer what is trusted.", min=200, max=599)] = 204,
    server: SERVER = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document per delivery.")] = False,
) -> None:
    """Receive webhooks on this machine, verify and show them."""
    from app.cli.webhook_listener import Listener, Showing
    from app.jobs.signing import new_secret

    out = Output(as_json=json)
    secrets = [each.strip() for each in (secret or new_secret()).split(",") if each.strip()]
    with exit_codes():
        try:
            listener = Listener(host, port, secrets, status, Showing(out))
        except ValueError as problem:
            raise CommandError(f"--secret: {problem}") from None
        except OSError as problem:
            raise CommandError(f"cannot listen on {host}:{port}: {problem.strerror or problem}") from None
        caller = address_of(server)
        url = listener.url_for(caller)
        out.note(f"Listening on {url}; Ctrl-C ends it.")
        if listener.cannot_be_reached_by(caller):
            out.note(
                f"{without_password(caller)} is another machine, and cannot call this one so: --host 0.0.0.0"
            )
        if secret is None:
            submit = f"foreman submit --kind noop --webhook {url} --webhook-secret -"
            if server:
                submit += f" --server {without_password(server)}"
            out.note(f"\nTo see something:\n\n  echo {secrets[0]} | {submit}\n")
        try:
            listener.serve_forever()
        finally:
            listener.server_close()
