"""What a model says on its way to the job: translated into its dialect, told as it comes, kept whole."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from app.dialects import (
    Dialect,
    Frame,
    Kind,
    ReplyForm,
    ResponseFolder,
    UsageMeter,
    response_translator,
)
from app.dialects.parts import part_of
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs.outcomes import Succeeded


class Speech:
    """One answer of a target that speaks `source`, for a job in a dialect of its own."""

    def __init__(
        self, kind: Kind, source: Dialect, job: ClaimedJob, body: Frame, context: RunContext
    ) -> None:
        started_at = datetime.now(UTC)
        self._kind: Kind = kind
        self._dialect: Dialect = "openai" if job.dialect == "openai" else "ollama"
        self._job_id = job.id
        self._context = context
        self._meter = UsageMeter(source, started_at)
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

    def hear(self, frame: Frame) -> None:
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

    @property
    def is_finished(self) -> bool:
        return self._translator.finished

    def outcome(self) -> Succeeded:
        """Raises IncompleteAnswer when something is missing."""
        response = self._folder.response()
        if self._dialect == "openai" and self._kind != "embed":
            # One id from the first chunk to the result, whoever made the answer.
            response["id"] = f"{'chatcmpl' if self._kind == 'chat' else 'cmpl'}-{self._job_id}"
        usage: dict[str, Any] = dict(self._meter.usage())
        return Succeeded(msgspec.json.encode(response).decode(), usage)

    def _tell(self, frame: Frame) -> None:
        if self._translator.error is not None:
            return
        self._folder.feed(frame)
        part = part_of(self._kind, self._dialect, frame)
        if part:
            self._context.output(part)
