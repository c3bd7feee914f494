"""What an executor gets and what it gives back."""

from typing import Any, Protocol, runtime_checkable

from app.jobs.outcomes import Outcome
from app.store.job import ClaimedJob

__all__ = ["ClaimedJob", "Executor", "InstantExecutor", "RunContext"]


class RunContext(Protocol):
    """The executor's line back to the engine."""

    async def start(self) -> None:
        """loading → working; once, when the target is ready and the work begins, unless the claim did it."""

    def output(self, part: str | dict[str, Any]) -> None:
        """What the job says, as it comes: text, or a frame that is more than text. Never waits."""

    async def progress(self, **fields: Any) -> None:
        """step, message, current, total, fraction: any of them."""

    async def log(self, level: str, message: str) -> None: ...


class Executor(Protocol):
    """Runs a job. It is cancelled (asyncio) when the job is; an exception means a bug."""

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome: ...


@runtime_checkable
class InstantExecutor(Protocol):
    """For jobs that end when they begin: it never waits, and must not raise. There is no run to follow."""

    def outcome(self, job: ClaimedJob) -> Outcome: ...
