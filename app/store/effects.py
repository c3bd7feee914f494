"""What every statement that moves or removes jobs shares, so that none can be written without it.

One that moves jobs names its changed rows `moved (id, seq, type, state, verb, data, webhook_url,
webhook_events)` and appends EVENT_AND_OUTBOX: the event, the outbox row and the announcement. `moved` makes both
of whole rows. Where the job's own row has taken the event (see history.py), it is OUTBOX. One that removes jobs names
them `gone (id, created_at, updated_at)` and appends `all_it_owned`.
"""

from app.store.rows import looked_up

# Among what an UPDATE of many jobs sets, although it changes nothing. `rank` is generated from `priority`; where an UPDATE
# sets nothing that it is made of, PostgreSQL (18.6) parses its expression anew for each row, only to find that out: an
# eighth of the time of a claim or a settlement. Where it does, the expression is made ready once.
RANK_IS_KEPT = "priority = j.priority"

_MOVED = """id, kind, state, queue, lane, concurrency_key AS key, has_dependents, ready_at IS NOT NULL AS ready, attempt,
    request_id, seq"""


def ran(rows: str) -> str:
    """How long each of these rows of `jobs` has run, of whose run the statement makes an end; NULL where it did not run."""
    return f"""(SELECT greatest(0, date_part('epoch', now() - claimed_at)) FROM running
        WHERE running.id = {rows}.id ORDER BY claimed_at DESC LIMIT 1)"""


def told(rows: str, *more: str, verb: str, ran: str = "NULL::float8", error: str = "NULL::text") -> str:
    """The end of a statement that moved these rows of `jobs`: what `Changes.moved` needs to know of each, and more. As
    expressions; `ran` has the seconds that it ran until now, `error` why it did not end well."""
    own = (f"{verb} AS verb", f"{ran} AS ran", f"{error} AS error")
    return f"""
SELECT {", ".join((_MOVED, *own, *more))} FROM {rows}
"""


def announced(rows: str = "moved", events: str = "1") -> str:
    """What the feed over all jobs reads, in the order of commits: one row a statement, however many jobs it moved; and
    where they have not all the same number of `events`, one for each number. The last of them has the job's `seq`."""
    at_once = "HAVING count(*) > 0" if events.isdigit() else "GROUP BY 3"
    return f"""
, announced AS (
    INSERT INTO announcements (job_ids, seqs, events)
    SELECT array_agg(id), array_agg(seq), {events} FROM {rows} {at_once}
)
"""


# Host and port as they stand in the URL: what deliveries are queued and limited by.
WEBHOOK_HOST = "coalesce(lower(substring(webhook_url FROM '^[^:]+://([^/?#]+)')), '')"

DELIVERIES = f"""
, to_send AS (
    INSERT INTO outbox (job_id, seq, type, host)
    SELECT id, seq, type, {WEBHOOK_HOST} FROM moved
    WHERE webhook_url IS NOT NULL
      AND CASE WHEN webhook_events IS NULL THEN type = state ELSE type = ANY (webhook_events) END
)
"""
OUTBOX = DELIVERIES + announced()


def logged(rows: str = "moved") -> str:
    """Put these events into the log, at the moment of the statement: a transaction may have waited for a lock since
    its now(), while another's event of the same job was written."""
    return f"""
, logged AS (
    INSERT INTO events (job_id, seq, type, state, reason, data, at)
    SELECT id, seq, type, state, verb, data, statement_timestamp() FROM {rows}
)
"""


EVENT_AND_OUTBOX = logged() + OUTBOX


def moved(rows: str, *, verb: str, data: str = "NULL", kind: str = "state") -> str:
    """The part of a statement that tells of these rows of `jobs`; verb, data and the event's type as expressions."""
    return (
        f"""
, moved AS (
    SELECT id, seq, {kind} AS type, state, {verb} AS verb, {data} AS data, webhook_url, webhook_events
    FROM {rows}
)
"""
        + EVENT_AND_OUTBOX
    )


def span(name: str, least: str, greatest: str) -> str:
    """That a job id lies between two parameters, those of the statement's ids that come first and last: so the days of
    `events` and `deliveries` in which none of them can be are not even opened."""
    return f"{name} >= {least}::text AND {name} <= {greatest}::text"


_OF_THEM = "= ANY (ARRAY(SELECT id FROM gone))"
# Found by the ids; what lies in their days, too, if $2 and $3 are the first and the last of them.
_AT_ONCE = f"""
, events_gone AS (DELETE FROM events WHERE job_id {_OF_THEM} AND {span("job_id", "$2", "$3")})
, deliveries_gone AS (DELETE FROM deliveries WHERE job_id {_OF_THEM} AND {span("job_id", "$2", "$3")})
"""
# What lies in days goes when the day does. Nobody sees it any more: it is read through its job.
_WITH_ITS_DAY = f"""
, events_gone AS (DELETE FROM events_rest WHERE job_id {_OF_THEM})
, deliveries_gone AS (DELETE FROM deliveries_rest WHERE job_id {_OF_THEM})
"""


def all_it_owned(*, at_once: bool) -> str:
    """Chatter is found by its day; an hour on either side is for clocks that differ after a failover. The bytes of
    artifacts that lie elsewhere are thrown into the trash, which the janitor empties. The outbox was emptied before."""
    return f"""
, endings_gone AS (DELETE FROM endings WHERE id {_OF_THEM})
{_AT_ONCE if at_once else _WITH_ITS_DAY}
, chatter_gone AS (
    DELETE FROM chatter USING gone
    WHERE {looked_up("chatter.job_id", "gone.id")}
      AND chatter.at BETWEEN gone.created_at - interval '1 hour' AND gone.updated_at + interval '1 hour'
)
, batches_gone AS (DELETE FROM batches WHERE job_id {_OF_THEM})
, artifacts_gone AS (DELETE FROM artifacts WHERE job_id {_OF_THEM} RETURNING location)
, trashed AS (
    INSERT INTO artifact_trash (location) SELECT location FROM artifacts_gone WHERE location IS NOT NULL
    ON CONFLICT DO NOTHING
)
"""
