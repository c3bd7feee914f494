"""A job's output in the dialect that it is read in.

Output is kept in the dialect of the job's caller and translated for readers who speak another one. Whatever
happens to the job, its frames end with exactly one that says so: done, with the counts, or an error.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import orjson

from app.dialects import dialect_named
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
        self._only_text = self._only_text and isinstance(part, str)
        at = datetime.now(UTC)
        return self._translator.feed(self._writer.say(part, at), at)

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
        error = as_dict(orjson.loads(job.error or "null")) if job.state == "failed" else {}
        return self.error(error.get("message") or ENDINGS.get(job.state, FAILED)[1])

    def error(self, message: str) -> list[Frame]:
        return self._translator.feed(self._source.error(500, message), datetime.now(UTC))

    def _translated(self, frames: Iterable[Frame], at: datetime) -> list[Frame]:
        return [each for frame in frames for each in self._translator.feed(frame, at)]
