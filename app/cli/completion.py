"""What the shell offers behind Tab: states, and what the server has. Silent when it is away, or slow."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import foreman_client as fc

# A person has a finger on the key.
PATIENCE_SECONDS = 1.0
RECENT = 50
STATES = {
    "queued": "waiting",
    "loading": "its target or model is made ready",
    "working": "running",
    "done": "finished",
    "failed": "gave up",
    "cancelled": "by somebody",
    "expired": "its deadline passed",
    "skipped": "replaced while it was queued",
    "stale": "lost its key to another",
    "dismissed": "a dead letter that was given up on",
}
DELIVERY_STATES = ("pending", "delivered", "given_up", "refused")
OWN_KINDS = ("chat", "generate", "embed", "http", "noop")

# A value, and a word about it for shells that show one.
Offers = Iterator[tuple[str, str]]


# Shells evaluate what they are offered, and names are other people's.
_SAFE = re.compile(r"[\w.:/@+-]+")
_UNSAFE = re.compile(r"[^\w.,:/@+ -]")
LONGEST_WORDS = 60


def _beginning(incomplete: str, offers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (value, _UNSAFE.sub("", said)[:LONGEST_WORDS])
        for value, said in offers
        if _SAFE.fullmatch(value) and value.startswith(incomplete)
    ]


def states(incomplete: str) -> list[tuple[str, str]]:
    return _beginning(incomplete, STATES.items())


def delivery_states(incomplete: str) -> list[tuple[str, str]]:
    return _beginning(incomplete, ((each, "") for each in DELIVERY_STATES))


def _from_server(find: "Callable[[fc.Foreman], Offers]") -> Callable[[Any, str], list[tuple[str, str]]]:
    def complete(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
        from app.cli.session import client

        # Whatever goes wrong: nobody asked for an error in the middle of a line.
        try:
            with client(ctx.params.get("server"), timeout=PATIENCE_SECONDS, retry_seconds=0) as foreman:
                return _beginning(incomplete, find(foreman))
        except Exception:
            return []

    return complete


def _recent_jobs(foreman: "fc.Foreman") -> Offers:
    for job in foreman.list_jobs(limit=RECENT).jobs:
        yield job.job_id, f"{job.state}, {job.kind} {job.model or ''}".rstrip()


def _dead_letters(foreman: "fc.Foreman") -> Offers:
    for job in foreman.list_jobs(state="failed", limit=RECENT).jobs:
        yield job.job_id, f"{job.kind} in {job.queue}"


def _queues(foreman: "fc.Foreman") -> Offers:
    for queue in foreman.call("GET", "/queues")["queues"]:
        yield queue["name"], f"{queue['counts']['queued']} queued" + (", paused" if queue["paused"] else "")


def _kinds(foreman: "fc.Foreman") -> Offers:
    """Foreman's own, and what the newest jobs are."""
    newest = dict.fromkeys(job.kind for job in foreman.list_jobs(limit=RECENT).jobs)
    for kind in dict.fromkeys([*OWN_KINDS, *newest]):
        yield kind, "a worker's" if kind not in OWN_KINDS else ""


def _named(path: str, said: str) -> "Callable[[fc.Foreman], Offers]":
    def find(foreman: "fc.Foreman") -> Offers:
        for each in foreman.call("GET", path)[path.strip("/")]:
            yield str(each["name"]), str(each.get(said) or "")

    return find


def _models(foreman: "fc.Foreman") -> Offers:
    for each in foreman.call("GET", "/api/tags")["models"]:
        yield str(each["name"]), ""


def _keys(foreman: "fc.Foreman") -> Offers:
    for each in foreman.call("GET", "/keys")["keys"]:
        yield each["key_id"], each["name"]


job_ids = _from_server(_recent_jobs)
dead_letters = _from_server(_dead_letters)
queues = _from_server(_queues)
kinds = _from_server(_kinds)
targets = _from_server(_named("/targets", "state"))
schedules = _from_server(_named("/schedules", "cron"))
models = _from_server(_models)
keys = _from_server(_keys)
