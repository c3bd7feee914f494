"""Renewing leases: heartbeats that come in together are one statement."""

from collections.abc import Sequence

from app.loops.batcher import Batcher
from app.store.database import Database
from app.store.settle import Lease, heartbeat

# A job, its lease token, and for how long if not as before.
Beat = tuple[str, str, float | None]


class Leases:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._batcher: Batcher[Sequence[Beat], dict[str, Lease]] = Batcher(
            "leases", self._flush, max_weight=1000, weight=len
        )

    async def renew(self, beats: Sequence[Beat]) -> dict[str, Lease]:
        """By job id; those missing from the answer are lost."""
        return await self._batcher.put(beats)

    async def _flush(self, groups: Sequence[Sequence[Beat]]) -> list[dict[str, Lease] | Exception]:
        beats = [beat for group in groups for beat in group]
        renewed = await heartbeat(
            self._database,
            [(job_id, token) for job_id, token, _ in beats],
            [seconds for _, _, seconds in beats],
        )
        # Two groups may name one job with different tokens; only the one with the current token renewed it.
        return [
            {
                job_id: renewed[job_id]
                for job_id, token, _ in group
                if job_id in renewed and renewed[job_id].token == token
            }
            for group in groups
        ]
