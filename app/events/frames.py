"""A job's output in the words of the surface it is read on: Ollama's frames or OpenAI's chunks.

Output is kept in the dialect of the job's caller and translated for readers who speak the other one. Whatever
happens to the job, its frames end with exactly one that says so: done, with the counts, or an error.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import orjson

from app.dialects import Dialect, Frame, Kind, ReplyForm, asks_for_usage, response_translator, surface_error
from app.dialects.parts import PartFrames, part_of
from app.dialects.shapes import as_dict, as_list
from app.events.feed import Part
from app.events.follow import Ending
from app.jobs.states import LIVE
from app.store.job import Job

RESTARTED = "the job was run anew and answers differently; attach again from the start"
CLOSING = "the server is shutting down and the job goes on; attach again"
GONE = "the job was deleted"

_WORDS = {
    "cancelled": "the job was cancelled",
    "expired": "the job's deadline has passed",
    "skipped": "the job was replaced by a newer one",
    "stale": "the job lost its place to a newer one",
    "dismissed": "the job failed and was dismissed",
}


class Frames:
    """One reader's frames, as JSON objects of its dialect."""

    def __init__(self, job: Job, dialect: Dialect) -> None:
        """`job` is the row of a chat or generate job."""
        self._kind: Kind = "chat" if job.kind == "chat" else "generate"
        self._source: Dialect = "openai" if job.dialect == "openai" else "ollama"
        model = job.model or ""
        self._frames = PartFrames(
            self._kind, self._source, model=model, answer_id=job.id, started_at=job.created_at
        )
        self._translator = response_translator(
            self._kind,
            self._source,
            dialect,
            model=model,
            answer_id=job.id,
            started_at=job.created_at,
            form=ReplyForm(include_usage=asks_for_usage(as_dict(orjson.loads(job.payload)))),
        )
        self._only_text = True

    def part(self, part: Part) -> list[Frame]:
        """What a piece of output becomes."""
        self._only_text = self._only_text and isinstance(part, str)
        at = datetime.now(UTC)
        return self._translator.feed(self._frames.say(part, at), at)

    def silence(self) -> Frame:
        """In NDJSON: keeps the connection alive. Clients take it for an empty answer."""
        return self._frames.silence(datetime.now(UTC))

    def ended(self, job: Ending) -> list[Frame]:
        """How the job ended, by its last state."""
        if job.state == "done":
            result = as_dict(orjson.loads(job.result or "{}"))
            at = datetime.now(UTC)
            unsaid = self._unsaid(result) if self._only_text else None
            return [
                *(self.part(unsaid) if unsaid else ()),
                *self._translated(self._frames.ending(result, at), at),
                *self._translator.finish(at),
            ]
        if job.state in LIVE:
            return self.error(CLOSING)
        error = as_dict(orjson.loads(job.error or "null")) if job.state == "failed" else {}
        return self.error(error.get("message") or _WORDS.get(job.state, "the job failed"))

    def error(self, message: str) -> list[Frame]:
        return self._translator.feed(surface_error(self._source, 500, message), datetime.now(UTC))

    def _translated(self, frames: Iterable[Frame], at: datetime) -> list[Frame]:
        return [each for frame in frames for each in self._translator.feed(frame, at)]

    def _unsaid(self, result: Frame) -> Part | None:
        """What a result says besides its text, for runs whose rows are gone with their day."""
        if self._source == "openai":
            choices = [as_dict(choice) for choice in as_list(result.get("choices"))]
            bare = [
                {**each, "message": {**as_dict(each.get("message")), "content": None}} for each in choices
            ]
            return part_of(self._kind, "openai", {"choices": bare}) if self._kind == "chat" else None
        if self._kind == "chat":
            return part_of("chat", "ollama", {"message": {**as_dict(result.get("message")), "content": ""}})
        return part_of("generate", "ollama", {**result, "response": ""})
