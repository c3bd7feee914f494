"""A target's answer on its way to the job: translated into its dialect, told as it comes, kept whole."""

from datetime import UTC, datetime

import msgspec

from app.dialects import dialect_named
from app.dialects.protocol import Dialect
from app.dialects.shapes import Frame, Kind
from app.dialects.translate import ResponseTranslator
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs.outcomes import Succeeded


class TargetAnswer:
    """One answer of a target that speaks `source`, for a job in a dialect of its own."""

    def __init__(
        self, kind: Kind, source: Dialect, job: ClaimedJob, body: Frame, context: RunContext
    ) -> None:
        self._kind = kind
        self._dialect = dialect_named(job.dialect)
        self._job_id = job.id
        self._context = context
        self._translator = ResponseTranslator(
            kind, source, self._dialect, job.model or "", job.id, datetime.now(UTC), asked=body
        )
        self._fold = self._dialect.fold(kind)

    def take(self, frame: Frame) -> None:
        """Raises GarbledAnswer for what is no answer."""
        for each in self._translator.feed(frame, datetime.now(UTC)):
            self._tell(each)

    def end(self) -> None:
        """The target has nothing more to say."""
        for each in self._translator.finish(datetime.now(UTC)):
            self._tell(each)

    @property
    def error(self) -> str | None:
        """What the target reported instead of the rest of its answer."""
        return self._translator.error

    def outcome(self) -> Succeeded:
        """Raises IncompleteAnswer when something is missing."""
        response = self._dialect.identified(self._kind, self._fold.response(), self._job_id)
        return Succeeded(msgspec.json.encode(response).decode(), {**self._translator.usage()})

    def _tell(self, frame: Frame) -> None:
        if self._translator.error is not None:
            return
        self._fold.feed(frame)
        part = None if self._kind == "embed" else self._dialect.part_of(self._kind, frame)
        if part:
            self._context.output(part)
