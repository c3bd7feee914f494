"""The webhook outbox: claiming what is due, recording what became of it, and the lists for people.

Rows get into `outbox` by `effects` and `events`, in the commit of the event they tell of. A delivery is claimed under a
short lease, sent outside any transaction, and recorded. Only the first pending delivery of a job can be claimed,
so a job's deliveries leave in the order of their seq; recording one as over claims the next in the same statement.

What is over moves to `deliveries` in the statement that records it: so what is pending stays a small table, whatever was
sent in its time, and the record of that is appended to and goes by dropping its days. To redeliver one moves it back.

Rows are looked up and locked one by one (LATERAL … LIMIT 1) and then changed by their key, compared as a range of one.
Left to choose, the planner joins by walking all that is pending: how much that is, its statistics never know in time.
Not by their address (ctid): where the lock had to be waited for it is that of a row which the statement's snapshot does
not see, and nothing would be changed, without an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from app.store.changes import Changes
from app.store.database import Database
from app.store.effects import span
from app.store.history import of_row
from app.store.low_water import THE_BEGINNING
from app.store.rows import arrays, as_rows, columns, first_and_last, looked_up, padded_arrays

# Followers of a delivery that backs off, moved out of the way by each claim beside what it claims.
MAX_PUSHED = 100


class DueDelivery(msgspec.Struct, gc=False):
    """A delivery that was claimed, with everything that its message is made of."""

    job_id: str
    seq: int
    type: str
    host: str
    tries: int
    next_try_at: datetime
    # Seconds since the event.
    age: float
    webhook_url: str
    webhook_secret: bytes | None
    webhook_shape: str | None
    kind: str
    dialect: str | None
    queue: str
    model: str | None
    metadata: str | None
    traceparent: str | None
    tracestate: str | None
    job_state: str
    error: str | None
    state: str
    at: datetime
    data: str | None
    previous_state: str | None
    attempt: int
    result_bytes: int | None
    result: str | None
    stored_artifacts: str | None


# The event as it was, the job as it is; what may be large is left out, and so
# is what a run said (chatter_of): its many partitions would be planned with every claim. It changes no state, so
# the log of states is enough to know the state before and after it.
_CONTENT = f"""
SELECT c.job_id, c.seq, c.type, c.host, c.tries, c.next_try_at, extract(epoch FROM now() - c.created_at)::float8 AS age,
    j.webhook_url, j.webhook_secret, j.webhook_shape, j.kind, j.dialect, j.queue, j.model, j.metadata, j.traceparent, j.tracestate,
    j.state AS job_state, j.error,
    coalesce(own.state, logged.state, before.state, c.type) AS state,
    coalesce(own.at, logged.at, c.created_at) AS at, coalesce(own.data, logged.data) AS data,
    before.state AS previous_state,
    CASE WHEN j.seq = c.seq THEN j.attempt ELSE coalesce((
        SELECT (claim.data::json ->> 'attempt')::int FROM (
            (SELECT seq, data FROM events
             WHERE job_id = c.job_id{{days}} AND seq <= c.seq AND type IN ('loading', 'queued')
             ORDER BY seq DESC LIMIT 1)
            UNION ALL
            SELECT own.claim_seq, own.claim_data WHERE own.claim_seq IS NOT NULL
        ) AS claim
        ORDER BY claim.seq DESC LIMIT 1
    ), 0) END AS attempt,
    CASE WHEN c.type = 'done' THEN octet_length(j.result) END AS result_bytes,
    CASE WHEN c.type = 'done' AND octet_length(j.result) <= {{largest}} THEN j.result END AS result,
    (SELECT json_agg(json_build_object('name', name, 'content_type', content_type, 'size', size) ORDER BY name)
     FROM artifacts WHERE job_id = c.job_id) AS stored_artifacts
FROM claimed c
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = c.job_id LIMIT 1) AS j
CROSS JOIN LATERAL (
    SELECT max(state) FILTER (WHERE seq = c.seq) AS state, max(at) FILTER (WHERE seq = c.seq) AS at,
        max(data) FILTER (WHERE seq = c.seq) AS data,
        max(seq) FILTER (WHERE seq < c.seq) AS before_seq,
        (array_agg(state ORDER BY seq DESC) FILTER (WHERE seq < c.seq))[1] AS before_state,
        max(seq) FILTER (WHERE type IN ('loading', 'queued')) AS claim_seq,
        (array_agg(data ORDER BY seq DESC) FILTER (WHERE type IN ('loading', 'queued')))[1] AS claim_data
    FROM {of_row("j")} AS own WHERE seq <= c.seq
) AS own
LEFT JOIN LATERAL (
    SELECT state, at, data FROM events WHERE job_id = c.job_id{{days}} AND seq = c.seq LIMIT 1
) AS logged ON true
LEFT JOIN LATERAL (
    (SELECT seq, state FROM events WHERE job_id = c.job_id{{days}} AND seq < c.seq ORDER BY seq DESC LIMIT 1)
    UNION ALL
    SELECT own.before_seq, own.before_state WHERE own.before_seq IS NOT NULL
    ORDER BY seq DESC LIMIT 1
) AS before ON true
"""


def _content(largest: str, *ids: str) -> str:
    """Of the deliveries that were `claimed`. As parameters: how large a result may be, and the first and the last of
    their jobs' ids."""
    return _CONTENT.replace("{largest}", largest).replace("{days}", f" AND {span('job_id', *ids)}")


def _is(held: str) -> str:
    """That `d` is the row which the statement holds under this name; only a look-up by key can find that out."""
    return looked_up("(d.job_id, d.seq)", f"({held}.job_id, {held}.seq)")


# Neither a lease nor the record of a try has to survive a crash of the database: without it the delivery is sent
# once more. So nobody waits for the disk here.
_BEFOREHAND = "beforehand AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to claim for one receiver: at most `room`, due since at least `overdue_seconds`, none before `mark`."""

    host: str
    room: int
    overdue_seconds: float = 0.0
    mark: datetime = field(default=THE_BEGINNING)


# pending → leased. A due row is passed over while an earlier one of its job is being sent: its recording takes
# the follower along. Where the earlier one backs off, the follower is set to the same moment: otherwise the
# followers of a dead receiver would pile up at the front of the index and be looked at by every claim.
# ORDER BY must stay what the index gives, or the LIMIT is no longer lazy. MATERIALIZED is a fence (see claims).
CLAIM = f"""
WITH {_BEFOREHAND}
, found AS MATERIALIZED (
    SELECT wanted.host, wanted.room, due.*
    FROM beforehand CROSS JOIN unnest($1::text[], $2::int[], $3::float8[], $4::timestamptz[]) AS wanted (host, room, overdue, mark)
    CROSS JOIN LATERAL (
        SELECT d.job_id, d.seq, d.next_try_at, first.seq AS first_seq, first.next_try_at AS first_at
        FROM outbox d
        CROSS JOIN LATERAL (
            SELECT f.seq, f.next_try_at, f.leased_until FROM outbox f
            WHERE f.job_id = d.job_id ORDER BY f.seq LIMIT 1
        ) AS first
        WHERE d.host = wanted.host
          AND d.next_try_at <= now() - wanted.overdue * interval '1 second' AND d.next_try_at >= wanted.mark
          AND (d.leased_until IS NULL OR d.leased_until <= now())
          AND (first.seq = d.seq
               OR (first.next_try_at > now() AND (first.leased_until IS NULL OR first.leased_until <= now())))
        ORDER BY d.next_try_at
        LIMIT wanted.room + $5
        FOR UPDATE OF d SKIP LOCKED
    ) AS due
)
, pushed AS (
    UPDATE outbox AS d SET next_try_at = found.first_at
    FROM found WHERE {_is("found")} AND found.seq > found.first_seq
)
, assigned AS (
    SELECT job_id, seq, room, row_number() OVER (PARTITION BY host ORDER BY next_try_at) AS place
    FROM found WHERE seq = first_seq
)
, claimed AS (
    UPDATE outbox AS d SET leased_until = now() + $6 * interval '1 second'
    FROM assigned WHERE {_is("assigned")} AND assigned.place <= assigned.room
    RETURNING d.job_id, d.seq, d.next_try_at
)
SELECT job_id, seq FROM claimed ORDER BY next_try_at
"""
# In a statement of its own, which knows the jobs beforehand: otherwise every claim, also of nothing, would open all days
# of events.
CONTENT = """
WITH claimed AS (
    SELECT d.* FROM unnest($1::text[], $2::int[]) AS mine (job_id, seq)
    CROSS JOIN LATERAL (SELECT * FROM outbox WHERE job_id = mine.job_id AND seq = mine.seq LIMIT 1) AS d
)
""" + _content("$3", "$4", "$5")


async def claim(
    database: Database, wanted: Sequence[Wanted], *, lease_seconds: float, max_result_bytes: int
) -> list[DueDelivery]:
    """The first pending deliveries of jobs that are due at these receivers, each with all its message needs; those that
    are due longest come first."""
    claimed = await database.fetch(
        CLAIM, *arrays(wanted, "host", "room", "overdue_seconds", "mark"), MAX_PUSHED, lease_seconds
    )
    if not claimed:
        return []
    ids = [row["job_id"] for row in claimed]
    records = await database.fetch(
        CONTENT, ids, [row["seq"] for row in claimed], max_result_bytes, *first_and_last(ids)
    )
    return [DueDelivery(**record) for record in records]


@dataclass(frozen=True, slots=True)
class Try:
    """What became of one try: `state` is pending when there is to be another after `delay_seconds`."""

    job_id: str
    seq: int
    # How many tries there had been before: whoever lost the lease meanwhile records nothing.
    tries: int
    state: str
    status: int | None = None
    error: str | None = None
    delay_seconds: float = 0.0
    # Whose it was, for those who count.
    host: str = ""


# Locks what is still ours of `input`.
_MINE = """CROSS JOIN LATERAL (
        SELECT FROM outbox d WHERE d.job_id = input.job_id AND d.seq = input.seq AND d.tries = input.tries
        LIMIT 1 FOR UPDATE
    ) AS mine"""

# pending → delivered, given_up, refused, or pending again later. What is over makes room for the next of its job,
# which is claimed here. That one is waited for if somebody holds it: passed over, it would wait for a poll.
RECORD = f"""
WITH {_BEFOREHAND}
, input AS (
    SELECT input.* FROM beforehand
    CROSS JOIN unnest($1::text[], $2::int[], $3::int[], $4::text[], $5::int[], $6::text[], $7::float8[])
        AS input (job_id, seq, tries, state, status, error, delay)
)
, held AS MATERIALIZED (
    SELECT input.* FROM input {_MINE}
)
, put_off AS (
    UPDATE outbox AS d SET
        tries = d.tries + 1, last_status = held.status, last_error = held.error, leased_until = NULL,
        next_try_at = now() + held.delay * interval '1 second'
    FROM held WHERE held.state = 'pending' AND {_is("held")}
)
, over AS (
    DELETE FROM outbox AS d USING held WHERE held.state <> 'pending' AND {_is("held")}
    RETURNING d.job_id, d.seq, d.type, d.host, d.created_at, held.state, d.tries + 1 AS tries, held.status, held.error
)
, recorded AS (
    INSERT INTO deliveries
        (job_id, seq, type, host, created_at, state, tries, last_status, last_error, delivered_at)
    SELECT over.*, CASE WHEN state = 'delivered' THEN now() END FROM over
)
, following AS MATERIALIZED (
    SELECT next.job_id, next.seq FROM over CROSS JOIN LATERAL (
        SELECT n.job_id, n.seq, n.leased_until FROM outbox n
        WHERE n.job_id = over.job_id AND n.seq > over.seq ORDER BY n.seq LIMIT 1 FOR UPDATE
    ) AS next
    WHERE $10 AND (next.leased_until IS NULL OR next.leased_until <= now())
)
, claimed AS (
    UPDATE outbox AS d SET leased_until = now() + $8 * interval '1 second'
    FROM following WHERE {_is("following")}
    RETURNING d.*
)
""" + _content("$9", "$11", "$12")


async def record(
    database: Database, tries: Sequence[Try], *, lease_seconds: float, max_result_bytes: int, take_next: bool
) -> list[DueDelivery | None]:
    """Record a batch; for each the next delivery of its job, claimed already, if there is one."""
    records = await database.fetch(
        RECORD,
        *padded_arrays(tries, "job_id", "seq", "tries", "state", "status", "error", "delay_seconds"),
        lease_seconds,
        max_result_bytes,
        take_next,
        *first_and_last(each.job_id for each in tries),
    )
    following = {record["job_id"]: DueDelivery(**record) for record in records}
    # Taken out: should two tries of one job meet in a batch, only one of them goes on.
    return [following.pop(each.job_id, None) for each in tries]


RENEW = f"""
WITH held AS MATERIALIZED (
    SELECT input.* FROM unnest($1::text[], $2::int[], $3::int[]) AS input (job_id, seq, tries) {_MINE}
)
UPDATE outbox AS d SET leased_until = now() + $4 * interval '1 second' FROM held WHERE {_is("held")}
"""


async def renew(database: Database, held: Sequence[tuple[str, int, int]], lease_seconds: float) -> None:
    """Hold on to (job id, seq, tries) whose receivers take their time; with 0 seconds, let go of them."""
    await database.execute(RENEW, *([each[n] for each in held] for n in range(3)), lease_seconds)


# A loose index scan: one probe per receiver that has anything pending, however much that is.
RECEIVERS = """
WITH RECURSIVE receivers AS (
    (SELECT host, next_try_at FROM outbox ORDER BY host, next_try_at LIMIT 1)
    UNION ALL
    SELECT following.* FROM receivers CROSS JOIN LATERAL (
        SELECT host, next_try_at FROM outbox WHERE host > receivers.host ORDER BY host, next_try_at LIMIT 1
    ) AS following
)
SELECT host, extract(epoch FROM next_try_at - now())::float8 AS seconds FROM receivers LIMIT 100000
"""


async def receivers(database: Database) -> dict[str, float]:
    """Hosts with pending deliveries, and the seconds until the first of them is due (negative: it is)."""
    return {row["host"]: row["seconds"] for row in await database.fetch(RECEIVERS)}


class Backlog(msgspec.Struct, gc=False):
    """What is pending for a receiver."""

    receiver: str
    pending: int
    oldest_seconds: float


# The few receivers with most of it, and all others together.
BACKLOG = """
WITH by_host AS MATERIALIZED (
    SELECT host, count(*) AS pending, min(created_at) AS oldest FROM outbox GROUP BY host
)
, ranked AS (SELECT *, row_number() OVER (ORDER BY pending DESC, host) AS place FROM by_host)
SELECT CASE WHEN place <= $1 THEN host ELSE $2 END AS receiver, sum(pending)::bigint,
    extract(epoch FROM greatest(now() - min(oldest), interval '0'))::float8
FROM ranked GROUP BY 1
"""


async def backlog(database: Database, receivers: int, others: str) -> list[Backlog]:
    """What is pending, for so many receivers by name, and for all others under that of the others."""
    return as_rows(Backlog, await database.fetch(BACKLOG, receivers, others))


# Written in the same transaction as the delivery: the same moment, and with it the one partition to look into.
CHATTER = """
SELECT c.data FROM chatter c
WHERE c.job_id = $1 AND c.seq = $2 AND c.at = coalesce(
    (SELECT created_at FROM outbox WHERE job_id = $1 AND seq = $2),
    (SELECT created_at FROM deliveries WHERE job_id = $1 AND seq = $2)
)
"""


async def chatter_of(database: Database, job_id: str, seq: int) -> str | None:
    """What the run said that a delivery tells of; None when its day was dropped already."""
    return await database.fetchval(CHATTER, job_id, seq)  # type: ignore[no-any-return]


RESULT = "SELECT result FROM jobs WHERE id = $1"


async def result_of(database: Database, job_id: str) -> str | None:
    """A result that was too large to come along with its delivery."""
    return await database.fetchval(RESULT, job_id)  # type: ignore[no-any-return]


# -- for people ------------------------------------------------------------------------------------------------


class Delivery(msgspec.Struct, gc=False):
    job_id: str
    seq: int
    type: str
    state: str
    tries: int
    last_status: int | None
    last_error: str | None
    # Only while pending.
    next_try_at: datetime | None
    delivered_at: datetime | None
    host: str
    created_at: datetime


_PENDING = columns(Delivery, "d", state="'pending'", delivered_at="NULL::timestamptz")
_OVER = columns(Delivery, "d", next_try_at="NULL::timestamptz")
# Every delivery there is, of jobs that are: for those who look at a whole database.
ALL_DELIVERIES = f"""(
    SELECT {_PENDING} FROM jobs j JOIN outbox d ON d.job_id = j.id
    UNION ALL
    SELECT {_OVER} FROM jobs j JOIN deliveries d ON d.job_id = j.id
)"""
_OF_JOB = "d.job_id = $1 AND d.seq > $3 AND EXISTS (SELECT 1 FROM jobs WHERE id = $1 AND tenant = $2)"
OF_JOB = f"""
(SELECT {_PENDING} FROM outbox d WHERE {_OF_JOB} ORDER BY d.seq LIMIT $4)
UNION ALL
(SELECT {_OVER} FROM deliveries d WHERE {_OF_JOB} ORDER BY d.seq LIMIT $4)
ORDER BY seq LIMIT $4
"""


async def deliveries_of(
    database: Database, job_id: str, tenant: str, after: int, limit: int
) -> list[Delivery]:
    """A job's deliveries in order."""
    return as_rows(Delivery, await database.of(tenant).fetch(OF_JOB, job_id, tenant, after, limit))


KNOWN = "SELECT true FROM jobs WHERE id = $1 AND tenant = $2"


async def job_exists(database: Database, job_id: str, tenant: str) -> bool:
    return await database.of(tenant).fetchval(KNOWN, job_id, tenant) is not None


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries; every part is optional. `before` is the (job id, seq) that a page ended with."""

    state: str | None = None
    host: str | None = None
    before: tuple[str, int] | None = None


def list_statement(wanted: DeliveryFilter, tenant: str, limit: int) -> tuple[str, list[object]]:
    """The statement and its parameters; only the conditions that were asked for, so that the planner sees them."""
    arguments: list[object] = [tenant, limit]
    conditions = ["j.tenant = $1"]
    if wanted.host is not None:
        arguments.append(wanted.host.lower())
        conditions.append(f"(d.host = ${len(arguments)} OR starts_with(d.host, ${len(arguments)} || ':'))")
    if wanted.before is not None:
        arguments += wanted.before
        job_id, seq = f"${len(arguments) - 1}", f"${len(arguments)}"
        # The first of the two tells which days need not be opened.
        conditions.append(f"d.job_id <= {job_id} AND (d.job_id, d.seq) < ({job_id}, {seq}::int)")
    looks = []
    if wanted.state in {None, "pending"}:
        looks.append(_look(_PENDING, "outbox", conditions))
    if wanted.state != "pending":
        if wanted.state is not None:
            arguments.append(wanted.state)
            conditions.append(f"d.state = ${len(arguments)}")
        # What names the partial index.
        if wanted.state in {"given_up", "refused"}:
            conditions.append("d.state IN ('given_up', 'refused')")
        looks.append(_look(_OVER, "deliveries", conditions))
    found = " UNION ALL ".join(looks)
    return f"SELECT * FROM ({found}) AS found ORDER BY job_id DESC, seq DESC LIMIT $2", arguments


def _look(shown: str, table: str, conditions: Sequence[str]) -> str:
    return (
        f"(SELECT {shown} FROM {table} d JOIN jobs j ON j.id = d.job_id WHERE {' AND '.join(conditions)}"
        " ORDER BY d.job_id DESC, d.seq DESC LIMIT $2)"
    )


async def list_deliveries(
    database: Database, wanted: DeliveryFilter, tenant: str, limit: int
) -> list[Delivery]:
    """Those of the newest jobs first."""
    statement, arguments = list_statement(wanted, tenant, limit)
    return as_rows(Delivery, await database.of(tenant).fetch_planned(statement, *arguments))


# How often a delivery is looked for: in the moment in which it is recorded, a statement finds it in neither table.
LOOKS = 3

# delivered, given_up, refused → pending, and its tries start over; one that is pending is only hastened. The job is
# held, so that nobody removes it in the same moment and leaves a delivery of no job in the outbox.
REDELIVER = f"""
WITH held AS MATERIALIZED (SELECT id FROM jobs WHERE id = $1 AND tenant = $2 FOR KEY SHARE)
, over AS (
    DELETE FROM deliveries AS d USING held WHERE d.job_id = $1 AND d.seq = $3
    RETURNING d.job_id, d.seq, d.type, d.host, d.created_at, d.last_status, d.last_error
)
, again AS (
    INSERT INTO outbox AS d (job_id, seq, type, host, created_at, last_status, last_error)
    SELECT * FROM over RETURNING {_PENDING}
)
, hastened AS (
    UPDATE outbox AS d SET next_try_at = now() FROM held WHERE d.job_id = $1 AND d.seq = $3 RETURNING {_PENDING}
)
SELECT * FROM again UNION ALL SELECT * FROM hastened
"""


async def redeliver(database: Database, job_id: str, tenant: str, seq: int) -> Changes[Delivery]:
    """Make a delivery due now; answers it as it is, nothing when there is none such."""
    found: list[Delivery] = []
    for _ in range(LOOKS):
        found = as_rows(Delivery, await database.fetch(REDELIVER, job_id, tenant, seq))
        if found:
            break
    return Changes(found, receivers={each.host for each in found})
