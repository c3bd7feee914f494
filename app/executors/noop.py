"""Kind `noop`: ends at once. For trying things out, and for measuring everything around it."""

from app.executors.protocol import ClaimedJob
from app.jobs.outcomes import Outcome, Succeeded

_NOTHING = Succeeded("null")


class NoopExecutor:
    def outcome(self, job: ClaimedJob) -> Outcome:
        return _NOTHING
