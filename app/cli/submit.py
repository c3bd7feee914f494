"""foreman submit: hand in a job, and wait for it or follow it if asked to."""

from typing import Annotated, Any

import typer

import foreman_client as fc
from app.cli.live import detachable, show_result
from app.cli.live import follow as follow_job
from app.cli.session import CommandError, Commands, Session
from app.cli.values import json_object, pairs, seconds, text_of

commands = Commands()


@commands.remote("submit")
def submit(  # noqa: PLR0913, PLR0917  # one parameter for each flag
    session: Session,
    prompt: Annotated[
        str | None, typer.Argument(help="What to say to the model; - reads stdin.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model of a chat or generate job.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", "-k", help="chat, generate, embed, http, noop or a worker's.")
    ] = "chat",
    payload: Annotated[
        str | None, typer.Option("--payload", "-p", help="The work as a JSON object; @file and - are read.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
    delay: Annotated[str | None, typer.Option(help="Not before: 30s, 5m, 2h.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Give up after: 30s, 5m, 2h.")] = None,
    max_attempts: Annotated[int | None, typer.Option()] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="key=value, any number of times.")] = None,
    target: Annotated[str | None, typer.Option(help="Pin to one target.")] = None,
    parent: Annotated[str | None, typer.Option(help="A job this one belongs to.")] = None,
    webhook: Annotated[str | None, typer.Option(help="URL that is told of every change of state.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key makes the same job, once.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait; exit 1 unless the job is done.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait, showing text and progress.")] = False,
    timeout: Annotated[str | None, typer.Option(help="With --wait: how long (30s, 5m).")] = None,
) -> None:
    """Hand in a job: `foreman submit -m echo "hello"`, or `foreman submit --kind report --payload '{…}'`."""
    work = _work(kind, prompt, model, json_object(payload, "--payload"))
    options: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "delay_seconds": seconds(delay, "--delay"),
        "deadline_seconds": seconds(deadline, "--deadline"),
        "max_attempts": max_attempts,
        "metadata": pairs(metadata, "--metadata") or None,
        "target": target,
        "state_webhook_url": webhook,
        **({"parent_id": parent} if parent else {}),
    }
    limit = seconds(timeout, "--timeout")
    handle = session.foreman.submit(kind, work, idempotency_key=idempotency_key, **options)
    if follow:
        session.out.note(f"[dim]job {handle.job_id}[/dim]")
        follow_job(session, handle.job_id)
    elif wait:
        wait_for(session, handle.job_id, limit)
    else:
        _receipt(session, handle)


def _work(
    kind: str, prompt: str | None, model: str | None, payload: dict[str, Any] | None
) -> dict[str, Any] | None:
    said = text_of(prompt) if prompt == "-" else prompt
    if kind not in {"chat", "generate", "embed"}:
        if said is not None or model is not None:
            raise CommandError(f"a job of kind {kind} takes --payload, not a prompt or --model")
        return payload
    work = dict(payload or {})
    if model is not None:
        work["model"] = model
    if said is not None:
        field, value = {
            "chat": ("messages", [*work.get("messages", []), {"role": "user", "content": said}]),
            "generate": ("prompt", said),
            "embed": ("input", said),
        }[kind]
        work[field] = value
    if "model" not in work:
        raise CommandError(f"a {kind} job needs --model")
    if not work.keys() & {"messages", "prompt", "input"}:
        raise CommandError(f"a {kind} job needs something to say: give it as an argument")
    return work


def _receipt(session: Session, handle: "fc.JobHandle") -> None:
    if session.out.as_json:
        receipt = {"job_id": handle.job_id, "outcome": handle.outcome, "replayed": handle.replayed}
        session.out.json(receipt)
        return
    session.out.text(handle.job_id)
    if handle.replayed:
        session.out.note("[dim]this idempotency key was used before: the job of that time[/dim]")
    elif handle.outcome != "accepted":
        session.out.note(f"[dim]{handle.outcome}[/dim]")


def wait_for(session: Session, job_id: str, timeout: float | None) -> None:
    """Wait, and show the result; with --json the whole job, however it ended."""
    out = session.out
    try:
        with detachable(out, job_id):
            job = session.foreman.wait(job_id, timeout)
    except fc.JobUnsuccessful as ended:
        if out.as_json:
            out.json(ended.job.raw)
        raise
    if out.as_json:
        out.json(job.raw)
    elif job.result is not None:
        show_result(out, job)
