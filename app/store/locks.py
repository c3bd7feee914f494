"""Advisory locks: those under which one replica at a time does something, by their numbers; and those of one thing
among many (a key, a queue's depth, a target's slots), by its name.

All of them end with their transaction: behind a PgBouncer a session's lock would be left to a stranger.
"""

import hashlib
from collections.abc import Mapping

from app.store.database import Runner

MIGRATE = 7261348001
SWEEP = 7261348002
FOLD_TALLIES = 7261348003
REPAIR = 7261348004
PRUNE = 7261348005
RENEW_PARTITIONS = 7261348006
FIRST_KEY = 7261348007
SAMPLE = 7261348008
FORGET_DAYS = 7261348009


def try_lock(number: int) -> str:
    """A statement that says whether this transaction may; whoever else is at it is not waited for."""
    return f"SELECT pg_try_advisory_xact_lock({number})"


def lock_number(*parts: str) -> int:
    """A number for an advisory lock; equal parts have equal numbers in every process."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


# One order for everybody: that of the numbers.
LOCK = """
SELECT CASE WHEN alone THEN pg_advisory_xact_lock(number)::text ELSE pg_advisory_xact_lock_shared(number)::text END
FROM unnest($1::bigint[], $2::bool[]) AS wanted (number, alone)
"""


async def lock(connection: Runner, numbers: Mapping[int, bool]) -> None:
    """Until the end of the transaction; the value says whether to be alone with it."""
    ordered = sorted(numbers)
    await connection.execute(LOCK, ordered, [numbers[number] for number in ordered])
