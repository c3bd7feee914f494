"""The event log of a job: appending what is not a transition, and reading it back in order.

`seq` is given out under the job row's lock, so it has no gaps and no two events share one. Only columns
without an index change, so the update of the job's row stays on its page.

What a run says (output, progress, logs) goes into `chatter`, whose days are dropped one by one; states and
what callers posted stay in `events` as long as the job does. Readers see one log, and see it through the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from app.store.changes import Changes
from app.store.database import Database, Runner
from app.store.effects import WEBHOOK_HOST, announced, span
from app.store.history import of_row
from app.store.rows import arrays, columns, first_and_last, looked_up
from app.telemetry import EVENTS_APPENDED

THROTTLED_TYPES = ("progress", "output")
CHATTER_TYPES = ("log", "output", "progress")


@dataclass(slots=True)
class NewEvent:
    """An event to append. With a lease token it counts only while that lease holds."""

    job_id: str
    type: str
    data: str | None = None
    lease_token: str | None = None
    # JSON text that becomes the job's `progress`.
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    seq: int
    at: datetime


# Webhooks for progress and output leave at most every 500 ms per job and type; state events always do.
APPEND = (
    f"""
WITH input AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
        WITH ORDINALITY AS input (id, token, type, data, progress, position)
)
, held AS (
    SELECT j.* FROM (SELECT DISTINCT id COLLATE "C" AS id FROM input ORDER BY 1) AS wanted
    CROSS JOIN LATERAL (
        SELECT id, seq, state, lease_token, webhook_url, webhook_events FROM jobs
        WHERE id = wanted.id AND completed_at IS NULL LIMIT 1 FOR UPDATE
    ) AS j
)
, accepted AS (
    SELECT input.*, held.state, held.webhook_url, held.webhook_events,
           held.seq + row_number() OVER (PARTITION BY input.id ORDER BY input.position) AS seq
    FROM input JOIN held ON held.id = input.id
    WHERE input.token IS NULL OR input.token = held.lease_token
)
, bumped AS (
    UPDATE jobs AS j SET seq = last.seq, progress = coalesce(last.progress, j.progress), updated_at = now()
    FROM (
        SELECT id, max(seq) AS seq, (array_agg(progress ORDER BY seq DESC) FILTER (WHERE progress IS NOT NULL))[1] AS progress
        FROM accepted GROUP BY id
    ) AS last
    WHERE {looked_up("j.id", "last.id")}
)
, logged AS (
    INSERT INTO events (job_id, seq, type, state, data, at)
    SELECT id, seq, type, state, data, now() FROM accepted WHERE type <> ALL ($7::text[])
)
, said AS (
    INSERT INTO chatter (job_id, seq, type, state, data, at)
    SELECT id, seq, type, state, data, now() FROM accepted WHERE type = ANY ($7::text[])
)
, to_send AS (
    INSERT INTO outbox (job_id, seq, type, host)
    SELECT DISTINCT ON (id, CASE WHEN type = ANY ($6::text[]) THEN type ELSE seq::text END) id, seq, type, {WEBHOOK_HOST}
    FROM accepted
    WHERE webhook_url IS NOT NULL AND type = ANY (webhook_events)
      AND (type <> ALL ($6::text[]) OR coalesce(greatest((
          SELECT o.created_at FROM outbox o
          WHERE o.job_id = accepted.id AND o.type = accepted.type ORDER BY o.seq DESC LIMIT 1
      ), (
          SELECT d.created_at FROM deliveries d
          WHERE d.job_id = accepted.id AND d.type = accepted.type AND {span("d.job_id", "$8", "$9")}
          ORDER BY d.seq DESC LIMIT 1
      )), '-infinity') <= now() - interval '500 milliseconds')
    ORDER BY id, CASE WHEN type = ANY ($6::text[]) THEN type ELSE seq::text END, seq DESC
)
, moved AS (SELECT id, seq FROM accepted)
"""
    + announced()
    + "SELECT position, seq, now() AS at FROM accepted"
)


async def append(database: Runner, events: Sequence[NewEvent]) -> Changes[Appended | None]:
    """Append in one commit; answers None for each whose job is unknown or has ended, or whose lease is lost."""
    rows = await database.fetch(
        APPEND,
        [each.job_id for each in events],
        [each.lease_token for each in events],
        [each.type for each in events],
        [each.data for each in events],
        [each.progress for each in events],
        list(THROTTLED_TYPES),
        list(CHATTER_TYPES),
        *first_and_last(each.job_id for each in events),
    )
    accepted = {row["position"]: Appended(row["seq"], row["at"]) for row in rows}
    changes = Changes([accepted.get(position) for position in range(1, len(events) + 1)])
    for event, answer in zip(events, changes.answers, strict=True):
        if answer is not None:
            changes.jobs.add(event.job_id)
            changes.count(EVENTS_APPENDED, event.type if event.type in CHATTER_TYPES else "posted")
    return changes


class Event(msgspec.Struct, gc=False):
    """One entry of a job's log. `data` is JSON text."""

    seq: int
    type: str
    state: str
    reason: str | None
    data: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Want:
    """A reader's next page: what came after `after`, of these types, within these bounds."""

    job_id: str
    after: int = 0
    types: tuple[str, ...] | None = None
    max_rows: int = 200
    max_bytes: int = 64 * 1024
    # Whose job it must be: of another's nothing is read, not even how much there would be.
    tenant: str | None = None

    @property
    def chatty(self) -> bool:
        """Whether chatter can be among the answer: otherwise its partitions need not be touched."""
        return self.types is None or any(each in CHATTER_TYPES for each in self.types)


@dataclass(slots=True)
class Page:
    """A piece of a job's log, and where the job stood in the same snapshot."""

    tenant: str
    kind: str
    state: str
    seq: int
    events: list[Event] = field(default_factory=list)
    # Everything up to here is in this page or was filtered out: the cursor for the next one.
    next_after: int = 0
    # The events as the reader's room wrote them down, kept for others who read the same page.
    rendered: bytes | None = None

    @property
    def is_last(self) -> bool:
        return self.next_after >= self.seq


# Both logs are walked by their primary keys, no further than the page needs. Sizes are known without
# fetching what lies in TOAST, and the first event comes however large it is.
READ = f"""
SELECT w.position, j.tenant, j.kind, j.state AS job_state, j.seq AS job_seq, e.bytes, {columns(Event, "e")}
FROM unnest($1::text[], $2::int[], $3::text[], $4::bool[], $5::int[], $6::int[], $7::text[])
    WITH ORDINALITY AS w (job_id, after, types, chatty, max_rows, max_bytes, tenant, position)
CROSS JOIN LATERAL (
    SELECT * FROM jobs WHERE id = w.job_id AND (w.tenant IS NULL OR tenant = w.tenant) LIMIT 1
) AS j
LEFT JOIN LATERAL (
    SELECT page.*, octet_length(page.data) AS own,
           sum(coalesce(octet_length(page.data), 0)) OVER (ORDER BY page.seq) AS bytes
    FROM (
        (SELECT {columns(Event)} FROM {of_row("j")} AS own
         WHERE seq > w.after AND j.seq > w.after AND (w.types IS NULL OR type = ANY (w.types::text[]))
         ORDER BY seq LIMIT w.max_rows)
        UNION ALL
        (SELECT {columns(Event)} FROM events
         WHERE job_id = w.job_id AND {span("job_id", "$8", "$9")} AND seq > w.after AND j.seq > w.after
           AND (w.types IS NULL OR type = ANY (w.types::text[]))
         ORDER BY seq LIMIT w.max_rows)
        UNION ALL
        (SELECT {columns(Event)} FROM chatter
         WHERE w.chatty AND job_id = w.job_id AND seq > w.after AND j.seq > w.after
           AND at BETWEEN j.created_at - interval '1 hour' AND j.updated_at + interval '1 hour'
           AND (w.types IS NULL OR type = ANY (w.types::text[]))
         ORDER BY seq LIMIT w.max_rows)
        ORDER BY seq LIMIT w.max_rows
    ) AS page
) AS e ON e.bytes - coalesce(e.own, 0) < w.max_bytes
ORDER BY w.position, e.seq
"""


async def read_pages(database: Database, wants: Sequence[Want]) -> list[Page | None]:
    """A page for each, in one query; None where there is no such job."""
    rows = await database.fetch(
        READ,
        *arrays(wants, "job_id", "after"),
        # Names of types need no quoting; see jobs.submission.EVENT_TYPE.
        [None if want.types is None else "{" + ",".join(want.types) + "}" for want in wants],
        *arrays(wants, "chatty", "max_rows", "max_bytes", "tenant"),
        *first_and_last(want.job_id for want in wants),
    )
    pages: list[Page | None] = [None] * len(wants)
    sizes = [0] * len(wants)
    for position, tenant, kind, state, seq, size, *event in rows:
        page = pages[position - 1]
        if page is None:
            page = pages[position - 1] = Page(tenant, kind, state, seq)
        # A job without anything to read has one row, and no event in it.
        if size is not None:
            page.events.append(Event(*event))
            sizes[position - 1] = size
    for want, page, size in zip(wants, pages, sizes, strict=True):
        if page is not None:
            page.next_after = _watermark(want, page, size)
    return pages


def _watermark(want: Want, page: Page, size: int) -> int:
    if not page.events:
        return max(page.seq, want.after)
    last = page.events[-1].seq
    cut = len(page.events) >= want.max_rows or size >= want.max_bytes
    return last if cut else max(page.seq, last)
