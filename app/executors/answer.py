"""A target's answer on its way to the job: translated into its dialect, told as it comes, kept whole."""

from datetime import UTC, datetime

import msgspec

from app.dialects import Dialect, Frame, Kind, ReplyForm, ResponseFolder, dialect_named, response_translator
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs.outcomes import Succeeded


class TargetAnswer:
    """One answer of a target that speaks `source`, for a job in a dialect of its own."""

    def __init__(
        self, kind: Kind, source: Dialect, job: ClaimedJob, body: Frame, context: RunContext
    ) -> None:
        started_at = datetime.now(UTC)
        self._kind = kind
        self._dialect = dialect_named(job.dialect)
        self._job_id = job.id
        self._context = context
        self._meter = source.meter(started_at)
        self._translator = response_translator(
            kind,
            source,
            self._dialect,
            model=job.model or "",
            answer_id=job.id,
            started_at=started_at,
            # The log is kept with its usage, whatever the caller asked for.
            form=ReplyForm.asked_by({**body, "stream": False}),
        )
        self._folder = ResponseFolder(kind, self._dialect)

    def take(self, frame: Frame) -> None:
        """Raises GarbledAnswer for what is no answer."""
        now = datetime.now(UTC)
        self._meter.feed(frame, now)
        for each in self._translator.feed(frame, now):
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
        response = self._dialect.identified(self._kind, self._folder.response(), self._job_id)
        usage = msgspec.json.encode(self._meter.usage()).decode()
        return Succeeded(msgspec.json.encode(response).decode(), usage)

    def _tell(self, frame: Frame) -> None:
        if self._translator.error is not None:
            return
        self._folder.feed(frame)
        part = None if self._kind == "embed" else self._dialect.part_of(self._kind, frame)
        if part:
            self._context.output(part)
