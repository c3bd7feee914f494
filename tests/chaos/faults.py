"""What is made to go wrong. Each fault is a function that does it, waits for as long as it lasts, and ends it.

Every choice comes from the dice that it is given, so that a seed gives the same faults in the same order. What cannot be
done on this machine (no PgBouncer, no libfaketime, no disk that can be mounted) raises `NotHere`, and is told as not run.
"""

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.cluster import FAKETIME, Cluster, Process, Replica
from tests.chaos.network import Relay
from tests.conftest import ROOT
from tests.patience import outlast, wait_until

Fault = Callable[[Cluster, random.Random], None]
FAULTS: dict[str, Fault] = {}
# Those in which nobody who holds a lease is kept from renewing it: they explain no lease that is lost.
HARMLESS_TO_LEASES: set[str] = set()

TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'foreman' AND pid <> pg_backend_pid()
"""


class NotHere(Exception):
    """This machine cannot do that; says why."""


def fault(name: str, *, costs_leases: bool = True) -> Callable[[Fault], Fault]:
    def add(function: Fault) -> Fault:
        FAULTS[name] = function
        if not costs_leases:
            HARMLESS_TO_LEASES.add(name)
        return function

    return add


# -- processes -------------------------------------------------------------------------------------


def _some(cluster: Cluster, dice: random.Random, *roles: str) -> Replica:
    return dice.choice([each for each in cluster.replicas if each.role in roles])


def _kill(cluster: Cluster, dice: random.Random, *roles: str) -> None:
    victim = _some(cluster, dice, *roles)
    victim.kill()
    outlast(dice.uniform(0.2, 3))
    restart(victim)


def restart(replica: Replica) -> None:
    replica.start()
    wait_until(replica.answers, 60, replica.log_path.read_text)


@fault("kill -9 of an API replica")
def _(cluster: Cluster, dice: random.Random) -> None:
    _kill(cluster, dice, "api", "all")


@fault("kill -9 of a worker (executors, dispatcher, deliverer)")
def _(cluster: Cluster, dice: random.Random) -> None:
    _kill(cluster, dice, "worker", "all")


@fault("kill -9 of everything but PostgreSQL")
def _(cluster: Cluster, dice: random.Random) -> None:
    for replica in cluster.replicas:
        replica.kill()
    for replica in cluster.replicas:
        replica.start()
    for replica in cluster.replicas:
        wait_until(replica.answers, 60, replica.log_path.read_text)


def _freeze(process: Process, seconds: float) -> None:
    process.freeze()
    outlast(seconds)
    process.thaw()


@fault("SIGSTOP of an API replica")
def _(cluster: Cluster, dice: random.Random) -> None:
    _freeze(_some(cluster, dice, "api", "all"), dice.uniform(1, 6))


@fault("SIGSTOP of a worker for longer than its leases")
def _(cluster: Cluster, dice: random.Random) -> None:
    _freeze(_some(cluster, dice, "worker", "all"), cluster.shape.lease_seconds * 2)


@fault("kill -9 of workers over HTTP")
def _(cluster: Cluster, dice: random.Random) -> None:
    number = dice.randrange(len(cluster.workers))
    cluster.workers[number].kill()
    cluster.client_worker.kill()
    outlast(dice.uniform(0.2, 3))
    cluster.start_workers(number)
    cluster.start_client_worker()


@fault("SIGSTOP of workers over HTTP for longer than their leases")
def _(cluster: Cluster, dice: random.Random) -> None:
    cluster.client_worker.freeze()
    _freeze(dice.choice(cluster.workers), cluster.shape.lease_seconds * 2)
    cluster.client_worker.thaw()


# -- PostgreSQL ------------------------------------------------------------------------------------


@fault("a storm of pg_terminate_backend")
def _(cluster: Cluster, dice: random.Random) -> None:
    for _ in range(12):
        cluster.postgres.primary.value(TERMINATE)
        outlast(dice.uniform(0.1, 0.6))


@fault("kill -9 of PostgreSQL")
def _(cluster: Cluster, dice: random.Random) -> None:
    cluster.postgres.kill_primary()
    outlast(dice.choice([0.1, 1, 6]))
    cluster.postgres.primary.start()


@fault("failover to the synchronous standby")
def _(cluster: Cluster, dice: random.Random) -> None:
    """Over when the new primary accepts writes. That the other follows it again is no longer part of the fault."""
    if cluster.postgres.standby is None:
        raise NotHere("there is no standby")
    gone = cluster.postgres.primary
    number = cluster.postgres.nodes.index(gone)
    ways = [each.to_postgres[number] for each in cluster.replicas]
    for way in ways:
        # Its machine is gone, too: nobody answers there.
        way.refuses()
    cluster.postgres.kill_primary()
    outlast(dice.uniform(0.1, 2))
    cluster.postgres.fail_over()
    cluster.afterwards(lambda: _take_back(cluster, ways))


def _take_back(cluster: Cluster, ways: list[Relay]) -> None:
    cluster.postgres.follow()
    for way in ways:
        way.passes()


@fault("the synchronous standby is cut off")
def _(cluster: Cluster, dice: random.Random) -> None:
    """Commits wait for it."""
    if cluster.postgres.replication is None:
        raise NotHere("there is no standby")
    cluster.postgres.replication.swallows()
    outlast(dice.uniform(2, 5))
    cluster.postgres.replication.passes()
    wait_until(cluster.postgres.is_followed, 30)


@fault("the disk is full")
def _(cluster: Cluster, dice: random.Random) -> None:
    if not cluster.disk_can_be_filled:
        raise NotHere("no disk of its own could be mounted for PostgreSQL")
    node = cluster.postgres.primary
    before, panics = cluster.refusals_that_name("disk"), node.panics()

    def is_noticed() -> bool:
        return cluster.refusals_that_name("disk") > before or node.panics() > panics or not node.running

    with cluster.full_disk():
        wait_until(is_noticed, 20)
        outlast(dice.uniform(2, 5))
    if not node.running:
        # PostgreSQL ends when it cannot write its log; whoever supervises it starts it again.
        node.kill()
        node.start()
    # One that gives up because its log does not fit closes all connections without a word.
    if cluster.refusals_that_name("disk") == before and node.panics() == panics:
        cluster.found.append(("a full disk is not named", "no 503 said that the disk is full"))


@fault("PgBouncer is killed")
def _(cluster: Cluster, dice: random.Random) -> None:
    if cluster.bouncer is None:
        raise NotHere("PgBouncer is not installed")
    cluster.bouncer.kill()
    outlast(dice.uniform(0.5, 4))
    cluster.bouncer.start()


# -- the network -----------------------------------------------------------------------------------


def _ways(cluster: Cluster, dice: random.Random, *prefixes: str) -> list[Relay]:
    """All wires between one drawn pair."""
    names = sorted(name for name in cluster.relays if name.startswith(prefixes))
    drawn = dice.choice(names)
    pair = drawn.rpartition(" ")[0] if " → postgres " in drawn else drawn
    return [relay for name, relay in cluster.relays.items() if name.startswith(pair)]


def _disturb(ways: list[Relay], how: Callable[[Relay], None], seconds: float) -> None:
    for way in ways:
        how(way)
    outlast(seconds)
    for way in ways:
        way.passes()


def _to_postgres(cluster: Cluster) -> tuple[str, ...]:
    return (*(f"{each.name} → postgres" for each in cluster.replicas), "pgbouncer → postgres")


@fault("a replica is cut off from PostgreSQL")
def _(cluster: Cluster, dice: random.Random) -> None:
    _disturb(_ways(cluster, dice, *_to_postgres(cluster)), Relay.cuts, dice.uniform(1, 6))


@fault("half-open connections to PostgreSQL")
def _(cluster: Cluster, dice: random.Random) -> None:
    _disturb(_ways(cluster, dice, *_to_postgres(cluster)), Relay.swallows, dice.uniform(2, 8))


@fault("everybody is far away from everybody")
def _(cluster: Cluster, dice: random.Random) -> None:
    ways = [relay for name, relay in cluster.relays.items() if name != "replication"]
    _disturb(ways, lambda way: way.delays(0.03), 6)


@fault("callers and workers are cut off from a replica")
def _(cluster: Cluster, dice: random.Random) -> None:
    _disturb(_ways(cluster, dice, "callers", "workers"), Relay.cuts, dice.uniform(1, 5))


@fault("half-open connections of callers and workers")
def _(cluster: Cluster, dice: random.Random) -> None:
    _disturb(_ways(cluster, dice, "callers", "workers"), Relay.swallows, dice.uniform(2, 8))


@fault("targets and receivers are cut off or half-open", costs_leases=False)
def _(cluster: Cluster, dice: random.Random) -> None:
    how = dice.choice([Relay.cuts, Relay.refuses, Relay.swallows])
    _disturb(_ways(cluster, dice, "jobs", "webhooks"), how, dice.uniform(1, 5))


# -- the rest of the world -------------------------------------------------------------------------


@fault("receivers die and come back", costs_leases=False)
def _(cluster: Cluster, dice: random.Random) -> None:
    for receiver in cluster.receivers:
        receiver.kill()
    outlast(dice.uniform(0.5, 4))
    for receiver in cluster.receivers:
        receiver.start()


@fault("a herd", costs_leases=False)
def _(cluster: Cluster, dice: random.Random) -> None:
    if cluster.callers.is_alive:
        cluster.callers.signal(signal.SIGUSR1)
    outlast(3)


@fault("a clock that is an hour off")
def _(cluster: Cluster, dice: random.Random) -> None:
    """A replica is restarted with it, works for a while, and is restarted without."""
    if not FAKETIME.exists():
        raise NotHere("libfaketime is not installed")
    replica, skew = dice.choice(cluster.replicas), dice.choice(["+1h", "-1h"])
    cluster.stop_politely(replica)
    replica.skew = skew
    restart(replica)
    outlast(6)
    cluster.stop_politely(replica)
    replica.skew = ""
    restart(replica)


MIGRATION = '''"""Chaos: a version that is not there yet."""

from collections.abc import Sequence

from alembic import op

revision: str = "{revision}"
down_revision: str | None = "{before}"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN chaos_{number} text NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE queued ADD COLUMN chaos_{number} text")
    op.execute("ALTER TABLE outbox ADD COLUMN chaos_{number} integer NOT NULL DEFAULT 0")


def downgrade() -> None:
    pass
'''


@fault("a rolling restart to a version with a new migration")
def _(cluster: Cluster, dice: random.Random) -> None:
    """One replica after the other, each with SIGTERM; the next when the one before is ready."""
    began = time.time()
    cluster.tree = _next_version(cluster)
    for replica in cluster.replicas:
        cluster.stop_politely(replica)
        restart(replica)
    cluster.rolled.append((began, time.time()))


def _next_version(cluster: Cluster) -> Path:
    """This source, and one migration more than the last had."""
    cluster.version += 1
    tree = cluster.folder / f"version-{cluster.version}"
    source = cluster.tree or ROOT
    for name in ("app", "alembic"):
        shutil.copytree(source / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    versions = sorted((tree / "alembic" / "versions").glob("[0-9]*.py"))
    before = versions[-1].name.partition("_")[0]
    revision = f"{int(before) + 1:04}"
    text = MIGRATION.format(revision=revision, before=before, number=cluster.version)
    (tree / "alembic" / "versions" / f"{revision}_chaos.py").write_text(text)
    return tree
