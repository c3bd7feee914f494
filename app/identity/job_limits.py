"""How many jobs of a key may be unfinished, over the whole fleet: counted before they come in.

Far from its limit a key is not counted for each submission: a process takes a share of the room and spends
it. So a large limit may be passed by as much as the processes hold; a small one is kept exactly.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from app.errors import RateLimited
from app.identity.account import Account
from app.identity.limits import RETRY_SECONDS
from app.jobs.ids import id_floor
from app.store import key_jobs
from app.store.database import Database
from app.store.remembered import Remembered
from app.telemetry import LIMITED

# The share of the room that a process takes, and from how much room on.
SHARE = 16
SHARED_FROM = 2000
# How long a count that found no room is believed, as a multiple of the time it took; a large one takes long.
REST_FACTOR = 10
LONGEST_REST_SECONDS = 5.0
# A job that is on its way in for longer than this is not coming.
ON_THE_WAY = timedelta(minutes=5)


class JobLimits:
    def __init__(self, database: Database) -> None:
        self._database = database
        # By key: what is left of the share; and until when it is known to have no room at all.
        self._shares: Remembered[str, int] = Remembered()
        self._full_until: Remembered[str, float] = Remembered()

    async def take(self, account: Account, job_ids: Sequence[str]) -> None:
        """Places for these jobs, which end with them. Raises RateLimited when the key has too many."""
        key_id, limit = account.key_id, account.jobs
        if key_id is None or limit is None:
            return
        number = len(job_ids)
        share = self._shares.get(key_id) or 0
        if share >= number:
            self._shares.put(key_id, share - number)
            await key_jobs.add(self._database, key_id, job_ids)
            return
        began = time.monotonic()
        if began < (self._full_until.peek(key_id) or 0):
            raise _refusal(limit)
        not_before = id_floor(datetime.now(UTC) - ON_THE_WAY)
        left = await key_jobs.add_counted(self._database, key_id, job_ids, limit, not_before)
        if left is None:
            took = time.monotonic() - began
            if number == 1:
                self._full_until.put(key_id, began + took + min(took * REST_FACTOR, LONGEST_REST_SECONDS))
            raise _refusal(limit)
        self._shares.put(key_id, left // SHARE if left >= SHARED_FROM else 0)

    async def give_back(self, account: Account, job_ids: Sequence[str]) -> None:
        """They were refused, or are others' jobs: whoever wants in next does not wait for them."""
        if account.key_id is not None and account.jobs is not None and job_ids:
            await key_jobs.remove(self._database, account.key_id, job_ids)
            self._full_until.forget(account.key_id)


def _refusal(limit: int) -> RateLimited:
    LIMITED.labels("jobs").inc()
    return RateLimited(
        f"This key already has {limit} jobs that have not ended.",
        retry_after=RETRY_SECONDS,
        headers={"ratelimit-policy": f'"jobs";q={limit}', "ratelimit": '"jobs";r=0'},
    )
