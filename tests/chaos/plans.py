"""The runs that there are: the whole one, the cut of it in the test suite, and one for each planted bug."""

from dataclasses import replace

from tests.chaos.run import WEIGHTS, Plan
from tests.chaos.shape import Shape

# As much as two cores can do beside ten processes of ours, and little enough that it is the faults which are felt.
WHOLE = Plan(seed=0, seconds=720, jobs=100_000, callers=12, caller_pause=0.15, batch=40)

# Two API replicas, one of which works as well: the fewest among whom anything can go wrong.
SMALL = Shape(
    replicas=(("api-1", "api"), ("worker-1", "worker"), ("all-1", "all")),
    standby=False,
    small_disk=False,
    receivers=("ok", "flaky"),
    lease_seconds=3.0,
    worker_processes=2,
)

CUT = Plan(
    seed=0,
    seconds=60,
    jobs=2_000,
    faults=(
        "kill -9 of an API replica",
        "kill -9 of a worker (executors, dispatcher, deliverer)",
        "SIGSTOP of a worker for longer than its leases",
        "kill -9 of workers over HTTP",
        "a storm of pg_terminate_backend",
        "kill -9 of PostgreSQL",
        "failover to the synchronous standby",
        "half-open connections to PostgreSQL",
        "callers and workers are cut off from a replica",
        "receivers die and come back",
    ),
    shape=replace(SMALL, standby=True),
    callers=8,
    pause=(0.5, 1.5),
)


# What callers and jobs notice of a deploy: nothing.
ROLLING = Plan(
    seed=0,
    seconds=0,
    jobs=200,
    faults=("a rolling restart to a version with a new migration",),
    shape=replace(SMALL, pgbouncer=False),
    callers=8,
    # On a machine that is busy otherwise, an answer that takes long has not failed.
    timeout=60,
)


def planted(bug: str) -> Plan:
    """A run that shows this bug, if the checker is any good."""
    faults, flavours, _ = _SHOWN_BY[bug]
    return Plan(
        seed=0,
        seconds=15,
        jobs=300,
        faults=faults,
        shape=replace(SMALL, planted=bug, pgbouncer=False),
        callers=8,
        flavours={name: WEIGHTS[name] for name in flavours},
        pause=(2.0, 3.0),
        stuck_seconds=15,
    )


# What has to go wrong for a bug to show, with which work, and in which column it then stands.
_SHOWN_BY: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "settle-by-id": (
        ("SIGSTOP of workers over HTTP for longer than their leases",),
        ("work", "any-kind"),
        "late settlements accepted",
    ),
    "event-outside-the-transaction": (
        ("kill -9 of an API replica",),
        ("work", "any-kind"),
        "gaps in seq",
    ),
    "notify-is-the-only-wake-up": (
        ("a storm of pg_terminate_backend",),
        ("rare", "work"),
        "stuck jobs",
    ),
    "told-before-it-is-durable": (
        ("kill -9 of PostgreSQL",),
        ("noop", "work"),
        "acknowledged jobs lost",
    ),
    # In quiet times: nothing has to go wrong for leases to be lost.
    "keeper-slower-than-the-sweeper": (
        ("a herd",),
        ("http", "noop"),
        "run again without a lost lease",
    ),
}
PLANTED = {bug: column for bug, (_, _, column) in _SHOWN_BY.items()}
