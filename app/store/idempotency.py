"""Submissions and what they were answered: the same key and body get the first answer again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from app.errors import IdempotencyMismatch, NotFound
from app.jobs.submission import NewJob
from app.store.database import Runner
from app.store.rows import arrays, looked_up


class Submission(msgspec.Struct, gc=False):
    """Jobs that are accepted together or not at all, and the key that makes a second try harmless."""

    jobs: list[NewJob]
    tenant: str = "default"
    idempotency_key: str | None = None
    fingerprint: bytes | None = None
    # Came as a list: what is wrong with one of the jobs is said with its index.
    batch: bool = False
    # Where traces are exported: when it was read, in nanoseconds, and whether its trace begins with it.
    received_at: int = 0
    begins_trace: bool = False


class Answer(NamedTuple):
    """What became of one job: its id, or that of the job which it was coalesced into."""

    job_id: str
    state: str = "queued"
    outcome: str = "accepted"


@dataclass(slots=True)
class Receipt:
    job_ids: list[str]
    replayed: bool = False
    # Only where not every job was simply accepted.
    answers: list[Answer] | None = field(default=None, compare=False)

    def each(self) -> list[Answer]:
        return self.answers or [Answer(job_id) for job_id in self.job_ids]


def write_answers(answers: Sequence[Answer]) -> str:
    """As kept with an idempotency key: ids, and what is worth saying beside."""
    return " ".join(
        each.job_id if each == Answer(each.job_id) else f"{each.job_id}:{each.state}:{each.outcome}"
        for each in answers
    )


def read_answers(text: str) -> list[Answer]:
    return [Answer(*each.split(":")) for each in text.split(" ")]


def just_expired() -> IdempotencyMismatch:
    # Its row was pruned in this very moment: the caller's retry will be a first request.
    return IdempotencyMismatch("The Idempotency-Key has just expired; try again.")


def _another_request() -> IdempotencyMismatch:
    return IdempotencyMismatch("This Idempotency-Key was already used with another request body.")


FIRST_ANSWERS = """
SELECT i.position, k.fingerprint, k.job_ids
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i (tenant, key, position)
CROSS JOIN LATERAL (SELECT * FROM idempotency_keys WHERE tenant = i.tenant AND key = i.key LIMIT 1) AS k
"""
STILL_THERE = "SELECT id FROM jobs WHERE id = ANY ($1::text[])"


async def first_answers(
    connection: Runner, repeats: Sequence[Submission]
) -> list[Receipt | Exception | None]:
    """What the first request with the same key was answered; or that it was another request, or that its jobs were
    deleted since; None if there was none."""
    found = await connection.fetch(FIRST_ANSWERS, *arrays(repeats, "tenant", "idempotency_key"))
    answers: list[Receipt | Exception | None] = [None] * len(repeats)
    for position, fingerprint, job_ids in found:
        if fingerprint != repeats[position - 1].fingerprint:
            answers[position - 1] = _another_request()
        else:
            first = read_answers(job_ids)
            answers[position - 1] = Receipt([each.job_id for each in first], replayed=True, answers=first)
    receipts = [each for each in answers if isinstance(each, Receipt)]
    if receipts:
        asked = [job_id for each in receipts for job_id in each.job_ids]
        there = {row["id"] for row in await connection.fetch(STILL_THERE, asked)}
        answers = [_deleted(each, there) or each if isinstance(each, Receipt) else each for each in answers]
    return answers


def _deleted(receipt: Receipt, there: set[str]) -> NotFound | None:
    """The first answer said that the jobs are queued. Of what is gone that is not to be said again, and it is not
    to be run again either."""
    deleted = [job_id for job_id in receipt.job_ids if job_id not in there]
    if not deleted:
        return None
    return NotFound(
        "What was submitted with this Idempotency-Key has been deleted since.",
        job_ids=receipt.job_ids,
        deleted=deleted,
    )


TAKE_KEYS = """
INSERT INTO idempotency_keys (tenant, key, fingerprint, job_ids)
SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[])
ON CONFLICT DO NOTHING RETURNING tenant, key
"""


class IdempotencyKeys:
    """The keys of one flush: which submissions are new, which repeat an older one or one beside them."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self._submissions = submissions
        self._first: dict[tuple[str, str], int] = {}
        self._twins: list[tuple[int, int]] = []
        for n, each in enumerate(submissions):
            if each.idempotency_key is not None:
                first = self._first.setdefault((each.tenant, each.idempotency_key), n)
                if first != n:
                    self._twins.append((n, first))

    async def take(self, connection: Runner, receipts: list[Receipt | Exception | None]) -> list[int]:
        """The positions of the submissions to decide on; repeats are answered with the first answer."""
        twins = {n for n, _ in self._twins}
        fresh = [n for n in range(len(self._submissions)) if n not in twins]
        if not self._first:
            return fresh
        # In one order everywhere, as in enqueue.
        named = [self._first[key] for key in sorted(self._first)]
        of_named = [self._submissions[n] for n in named]
        taken = {
            (row["tenant"], row["key"])
            for row in await connection.fetch(
                TAKE_KEYS,
                *arrays(of_named, "tenant", "idempotency_key", "fingerprint"),
                [write_answers([Answer(job.id) for job in each.jobs]) for each in of_named],
            )
        }
        repeats = [n for key, n in self._first.items() if key not in taken]
        first = await first_answers(connection, [self._submissions[n] for n in repeats])
        for n, answer in zip(repeats, first, strict=True):
            receipts[n] = answer or just_expired()
        return [n for n in fresh if receipts[n] is None]

    async def settle(self, connection: Runner, receipts: list[Receipt | Exception | None]) -> None:
        """Keep the answers that differ from the plain one; forget the keys of what was refused."""
        kept: list[tuple[str, str, str]] = []
        refused: list[tuple[str, str]] = []
        for key, n in self._first.items():
            receipt = receipts[n]
            if not isinstance(receipt, Receipt):
                refused.append(key)
            elif not receipt.replayed and any(each.outcome != "accepted" for each in receipt.each()):
                kept.append((*key, write_answers(receipt.each())))
        if kept:
            await connection.execute(KEEP_ANSWERS, *map(list, zip(*kept, strict=True)))
        if refused:
            await connection.execute(
                GIVE_BACK_KEYS,
                *map(list, zip(*refused, strict=True)),
                [self._submissions[self._first[key]].jobs[0].id for key in refused],
            )
        for n, first in self._twins:
            receipts[n] = self._as_twin(self._submissions[n], self._submissions[first], receipts[first])

    @staticmethod
    def _as_twin(
        submission: Submission, first: Submission, receipt: Receipt | Exception | None
    ) -> Receipt | Exception | None:
        """The same key twice in one flush is answered as if they had come one after the other."""
        if isinstance(receipt, Receipt) and submission.fingerprint != first.fingerprint:
            return _another_request()
        return replace(receipt, replayed=True) if isinstance(receipt, Receipt) else receipt


KEEP_ANSWERS = f"""
UPDATE idempotency_keys AS k SET job_ids = kept.answers
FROM unnest($1::text[], $2::text[], $3::text[]) AS kept (tenant, key, answers)
WHERE {looked_up("(k.tenant, k.key)", "(kept.tenant, kept.key)")}
"""
# Only the rows that this flush wrote: a mismatch leaves the older one as it is.
GIVE_BACK_KEYS = f"""
DELETE FROM idempotency_keys AS k USING unnest($1::text[], $2::text[], $3::text[]) AS refused (tenant, key, first)
WHERE {looked_up("(k.tenant, k.key)", "(refused.tenant, refused.key)")} AND left(k.job_ids, 26) = refused.first
"""
