"""What an executor gets and what it gives back."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from app.jobs.outcomes import Outcome


@dataclass(slots=True)
class ClaimedJob:
    """A job as its worker sees it. `payload` is JSON text."""

    id: str
    tenant: str
    queue: str
    lane: str
    kind: str
    payload: str
    model: str | None
    target: str | None
    attempt: int
    max_attempts: int
    deferrals: int
    lease_token: str
    deadline: datetime | None
    max_duration_seconds: float | None
    traceparent: str | None
    # The seq of the claim's event: it tells this run from every other of the job.
    seq: int = 0
    # What the payload of an LLM job is written in, and its result will be.
    dialect: str = "ollama"

    @classmethod
    def from_record(cls, record: Any) -> "ClaimedJob":
        return cls(
            record["id"],
            record["tenant"],
            record["queue"],
            record["lane"],
            record["kind"],
            record["payload"],
            record["model"],
            record["target"],
            record["attempt"],
            record["max_attempts"],
            record["deferrals"],
            record["lease_token"],
            record["deadline"],
            record["max_duration_seconds"],
            record["traceparent"],
            record["seq"],
            record["dialect"],
        )


class RunContext(Protocol):
    """The executor's line back to the engine."""

    async def start(self) -> None:
        """loading → working; once, when the target is ready and the work begins."""

    def output(self, part: str | dict[str, Any]) -> None:
        """What the job says, as it comes: text, or a frame that is more than text. Never waits."""

    async def progress(self, **fields: Any) -> None:
        """step, message, current, total, fraction: any of them."""

    async def log(self, level: str, message: str) -> None: ...


class Executor(Protocol):
    """Runs a job. It is cancelled (asyncio) when the job is; an exception means a bug."""

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome: ...
