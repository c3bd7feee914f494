"""From any dialect to any other, requests and answers; within one dialect everything passes as it is.

    translator = ResponseTranslator("chat", OPENAI, OLLAMA, model, answer_id, started_at)
    for frame in …: out += translator.feed(frame, at=now)
    out += translator.finish(at=now)

Whatever happens to the source, the frames that come out end with exactly one terminal frame, done or error.
Clocks and ids are the caller's.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.dialects.neutral import Delta
from app.dialects.protocol import Dialect, TargetDialect
from app.dialects.shapes import Frame, Kind, error_message, nanoseconds
from app.dialects.usage import Usage

CUT_SHORT = "the answer was cut short"


def translate_request(kind: Kind, body: Frame, source: Dialect, to: TargetDialect) -> Frame:
    """The body as the other dialect says it; the very same object where there is nothing to translate.

    Raises UntranslatableRequest, with a message for the caller.
    """
    return body if source is to else to.write_request(kind, source.read_request(kind, body))


class ResponseTranslator:
    """`finished` is set by the terminal frame; then `error` says whether, and how, the answer went wrong.

    Within one dialect frames are passed on as they are, but never without their end.
    """

    def __init__(
        self,
        kind: Kind,
        source: Dialect,
        to: Dialect,
        model: str,
        answer_id: str,
        started_at: datetime,
        *,
        include_usage: bool = True,
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        """`asked` is the request, in the dialect of its caller, that says how embeddings are wanted."""
        self._kind = kind
        self._source = source
        self._to = to
        self._verbatim = source is to
        self._model = model
        self._started_at = started_at
        self._asked = asked or {}
        self._reader = source.reader(kind, started_at)
        self.writer = to.writer(kind, model, answer_id, started_at, include_usage=include_usage)
        self.finished = False
        self.error: str | None = None
        # The source's own, as it came.
        self.error_document: Frame | None = None

    def feed(self, frame: Frame, at: datetime) -> list[Frame]:
        """Raises GarbledAnswer for embeddings that are none."""
        if self.finished:
            return []
        error = error_message(frame)
        if error is not None:
            self.error_document = frame
            return self._fail(error, frame if self._verbatim else None)
        self._reader.note(frame, at)
        if self._kind == "embed":
            return [self._embeddings(frame, at)]
        if self._verbatim:
            self.finished = self._reader.ended
            return [frame]
        frames: list[Frame] = []
        for delta in self._reader.deltas(frame):
            frames += self.writer.delta(delta, at)
        return frames + self._ending(at) if self._reader.ended else frames

    def plain_text(self, frame: Frame, at: datetime) -> str | None:
        """A short way for frames that are nothing but the next piece of text; None: it is to be fed."""
        if self.finished or self._kind == "embed" or (self._verbatim and self._source.keeps_envelopes):
            return None
        text = self._source.plain_text(self._kind, frame)
        if text is not None:
            self._reader.note(frame, at)
        return text

    def repeats(self, text: str, at: datetime) -> bool:
        """The last frame once more, but for its text; False when the answer is over already."""
        if not self.finished:
            self._reader.note_text(text, at)
        return not self.finished

    def finish(self, at: datetime) -> list[Frame]:
        """The source has ended."""
        if self.finished:
            return []
        self.finished = self._verbatim and self._reader.complete
        return [] if self.finished else self._ending(at)

    def usage(self) -> Usage:
        """What the answer cost at its source."""
        return self._reader.usage()

    def _ending(self, at: datetime) -> list[Frame]:
        end = None if self._verbatim else self._reader.end()
        if end is None:
            return self._fail(CUT_SHORT)
        self.finished = True
        return self.writer.delta(Delta(calls=end.calls), at) + self.writer.end(end, at)

    def _embeddings(self, frame: Frame, at: datetime) -> Frame:
        self.finished = True
        self._source.check_embeddings(frame)
        if self._verbatim:
            return frame
        vectors, tokens = self._source.read_embeddings(frame)
        took = nanoseconds((at - self._started_at).total_seconds())
        return self._to.write_embeddings(vectors, tokens, self._model, took, self._asked)

    def _fail(self, message: str, frame: Frame | None = None) -> list[Frame]:
        self.finished = True
        self.error = message
        return [frame or self._to.error(500, message)]
