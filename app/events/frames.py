"""A job's output in the dialect that it is read in.

Output is kept in the dialect of the job's caller and translated for readers who speak another one. Whatever
happens to the job, its frames end with exactly one that says so: done, with the counts, or an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from app.dialects import dialect_named
from app.dialects.kept import is_end, text_of
from app.dialects.neutral import Part
from app.dialects.protocol import Dialect
from app.dialects.shapes import Frame, Kind, as_dict, asks_for_usage
from app.dialects.translate import ResponseTranslator
from app.events.follow import Ended
from app.jobs.states import LIVE
from app.store.job import Job

RESTARTED = "the job was run anew and answers differently; attach again from the start"
CLOSING = "the server is shutting down and the job goes on; attach again"
GONE = "the job was deleted"

# How a job that has no answer ended, and the status that says so where there is one.
ENDINGS = {
    "cancelled": (500, "the job was cancelled"),
    "expired": (504, "the job's deadline has passed"),
    "skipped": (503, "the job was replaced by a newer one"),
    "stale": (503, "the job lost its place to a newer one"),
    "dismissed": (500, "the job failed and was dismissed"),
}
FAILED = (500, "the job failed")


@dataclass(frozen=True, slots=True)
class Failure:
    """How a job that has no answer ended, for who waited for one."""

    status: int
    message: str
    code: str | None
    # What of the request it is about.
    param: str | None = None
    retry_after: int | None = None
    # What its target said, in the dialect of the job's caller.
    document: Frame | None = None

    @classmethod
    def of(cls, job: Ended | Job) -> "Failure":
        error = as_dict(orjson.loads(job.error or "null"))
        if job.state == "failed":
            status, message = error.get("status") or FAILED[0], error.get("message") or FAILED[1]
            details = (error.get(name) for name in ("code", "param", "retry_after", "body"))
            return cls(status, message, *details)
        status, message = ENDINGS.get(job.state, FAILED)
        if job.state == "expired" and error.get("message"):
            message += f"; last error: {error['message']}"
        return cls(status, message, job.state)

    def body(self, dialect: Dialect) -> Frame:
        """In the job's dialect."""
        return self.document or dialect.error(self.status, self.message, param=self.param, code=self.code)

    def frame(self, dialect: Dialect) -> Frame:
        """In a stream of the job's dialect, where no status says that this is an error."""
        if self.document is not None and self.document.get("error"):
            return self.document
        return dialect.error(self.status, self.message, param=self.param, code=self.code)


class Frames:
    """One reader's frames, as JSON objects of its dialect."""

    def __init__(self, job: Job, dialect: Dialect) -> None:
        """`job` is the row of a chat or generate job."""
        self._kind: Kind = "chat" if job.kind == "chat" else "generate"
        self._source = dialect_named(job.dialect)
        model, asked = job.model or "", asks_for_usage(as_dict(orjson.loads(job.payload)))
        # Another dialect may need the counts for an end of its own.
        tells_usage = asked or self._source is not dialect
        answer = (model, job.id, job.created_at)
        self._writer = self._source.writer(self._kind, *answer, include_usage=tells_usage)
        self._translator = ResponseTranslator(self._kind, self._source, dialect, *answer, include_usage=asked)
        self._only_text = True

    def part(self, part: Part) -> list[Frame]:
        """What a piece of output becomes."""
        self._only_text = self._only_text and (text_of(part) is not None or is_end(part))
        at = datetime.now(UTC)
        return self._translated(self._writer.told(part, at), at)

    def foresee(self, job: Ended) -> None:
        """How the job ended is known before what it said."""
        if job.state == "done":
            self._writer.foresee(as_dict(orjson.loads(job.result or "{}")))

    def silence(self) -> Frame:
        """In NDJSON: keeps the connection alive. Clients take it for an empty answer."""
        return self._translator.writer.say("", datetime.now(UTC))

    def ended(self, job: Ended) -> list[Frame]:
        """How the job ended, by its last state."""
        if job.state == "done":
            result = as_dict(orjson.loads(job.result or "{}"))
            at = datetime.now(UTC)
            # Besides its text, for runs whose rows are gone with their day.
            unsaid = self._source.unsaid(self._kind, result) if self._only_text else None
            return [
                *(self.part(unsaid) if unsaid else ()),
                *self._translated(self._writer.ending(result, at), at),
                *self._translator.finish(at),
            ]
        if job.state in LIVE:
            return self.error(CLOSING)
        return self._translator.feed(Failure.of(job).frame(self._source), datetime.now(UTC))

    def error(self, message: str) -> list[Frame]:
        return self._translator.feed(self._source.error(500, message), datetime.now(UTC))

    def _translated(self, frames: Iterable[Frame], at: datetime) -> list[Frame]:
        return [each for frame in frames for each in self._translator.feed(frame, at)]
