"""foreman submit: hand in a job, and wait for it or follow it if asked to."""

from datetime import datetime
from typing import Annotated, Any

import typer

import foreman_client as fc
from app.cli import completion
from app.cli.errors import CommandError
from app.cli.live import follow as follow_job
from app.cli.session import Commands, Session
from app.cli.times import ahead, seconds
from app.cli.values import json_object, pairs, secret, text_of
from app.cli.waiting import wait_for

commands = Commands()


@commands.remote("submit")
def submit(  # noqa: PLR0913, PLR0917  # one parameter for each flag
    session: Session,
    prompt: Annotated[
        str | None, typer.Argument(help="What to say to the model; - reads stdin.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Model of a chat or generate job.", autocompletion=completion.models
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            "-k",
            help="chat, generate, embed, http, noop or a worker's.",
            autocompletion=completion.kinds,
        ),
    ] = "chat",
    payload: Annotated[
        str | None, typer.Option("--payload", "-p", help="The work as a JSON object; @file and - are read.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="default, if none is named.", autocompletion=completion.queues),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
    delay: Annotated[str | None, typer.Option(help="Not before so long: 30s, 5m, 2h.")] = None,
    run_at: Annotated[
        str | None, typer.Option(help="Not before this moment: 2030-01-31T12:00, or in 5m, +5m.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Give up after so long (30s, 5m, 2h), or at this moment.")
    ] = None,
    max_duration: Annotated[str | None, typer.Option(help="Of one attempt: 30s, 5m, 2h.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="How often it is tried in all.")] = None,
    backoff: Annotated[
        str | None, typer.Option(help="Waits between attempts, separated by commas: 5s,30s,2m.")
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(
            help="A job that must be done first; any number of times.", autocompletion=completion.job_ids
        ),
    ] = None,
    on_dependency_failure: Annotated[
        str | None, typer.Option(help="What to do when one of those fails: cancel (if not said) or run.")
    ] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="key=value, any number of times.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Pin to one target.", autocompletion=completion.targets)
    ] = None,
    parent: Annotated[
        str | None, typer.Option(help="A job this one belongs to.", autocompletion=completion.job_ids)
    ] = None,
    webhook: Annotated[str | None, typer.Option(help="URL that is told of every change of state.")] = None,
    webhook_event: Annotated[
        list[str] | None,
        typer.Option(help="Tell only of this (done, failed, progress …); any number of times."),
    ] = None,
    webhook_secret: Annotated[
        str | None,
        typer.Option(help="whsec_… to sign with: from a file (@name), stdin (-) or a variable (env:NAME)."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key makes the same job, once.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait; exit 1 unless the job is done.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait, showing text and progress.")] = False,
    timeout: Annotated[str | None, typer.Option(help="With --wait: how long (30s, 5m).")] = None,
) -> None:
    """Hand in a job.

    Such as `foreman submit -m echo "hello"`, or `foreman submit --kind report --payload '{…}' --wait`.
    """
    if [prompt, payload, webhook_secret].count("-") > 1:
        raise CommandError("only one thing can be read from stdin")
    if timeout is not None and (follow or not wait):
        raise CommandError("--timeout goes with --wait")
    limit = seconds(timeout, "--timeout")
    work = _work(kind, prompt, model, json_object(payload, "--payload"))
    options: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        **_moments(delay, run_at, deadline),
        "max_duration_seconds": seconds(max_duration, "--max-duration"),
        "max_attempts": max_attempts,
        "backoff_seconds": [seconds(each, "--backoff") for each in backoff.split(",")] if backoff else None,
        "depends_on": [session.job_id(each) for each in depends_on or ()] or None,
        "on_dependency_failure": on_dependency_failure,
        "metadata": pairs(metadata, "--metadata") or None,
        "target": target,
        "state_webhook_url": webhook,
        "webhook_events": webhook_event or None,
        "webhook_secret": secret(webhook_secret, "--webhook-secret"),
        **({"parent_id": session.job_id(parent)} if parent else {}),
    }
    handle = session.foreman.submit(kind, work, idempotency_key=idempotency_key, **options)
    if not (follow or wait):
        _receipt(session, handle)
        return
    # Before anything else: whoever goes away now knows what to come back to.
    session.out.aside(f"job {handle.job_id}")
    if follow:
        follow_job(session, handle.job_id)
    else:
        wait_for(session, handle.job_id, limit)


def _moments(delay: str | None, run_at: str | None, deadline: str | None) -> dict[str, Any]:
    """How long is told as that, so that the server's clock counts."""
    if delay is not None and run_at is not None:
        raise CommandError("give --delay or --run-at, not both")
    begin = seconds(delay, "--delay") if run_at is None else ahead(run_at, "--run-at")
    end = None if deadline is None else ahead(deadline, "--deadline")
    return {
        "run_at" if isinstance(begin, datetime) else "delay_seconds": begin,
        "deadline" if isinstance(end, datetime) else "deadline_seconds": end,
    }


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
        session.out.aside("this idempotency key was used before: the job of that time")
    elif handle.outcome != "accepted":
        session.out.aside(handle.outcome)
