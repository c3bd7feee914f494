"""Kind `noop`: ends at once. For trying things out, and for measuring everything around it."""

from app.executors.protocol import ClaimedJob, RunContext
from app.jobs.outcomes import Outcome, Succeeded

_NOTHING = Succeeded("null")


class NoopExecutor:
    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        return _NOTHING
