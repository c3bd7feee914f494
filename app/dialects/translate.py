"""From any dialect to any other, requests and answers; within one dialect everything passes as it is.

    translator = response_translator("chat", OPENAI, OLLAMA, model=…, answer_id=…, started_at=…)
    for frame in …: out += translator.feed(frame, at=now)
    out += translator.finish(at=now)

Whatever happens to the source, the frames that come out end with exactly one terminal frame, done or error.
Clocks and ids are the caller's.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime

from app.dialects.neutral import Delta, Piece
from app.dialects.protocol import AnswerWriter, Dialect, ReplyForm
from app.dialects.shapes import Frame, Kind, error_message, nanoseconds

CUT_SHORT = "the answer was cut short"


def translate_request(kind: Kind, body: Frame, source: Dialect, to: Dialect) -> Frame:
    """The body as the other dialect says it; the very same object where there is nothing to translate.

    Raises UntranslatableRequest, with a message for the caller.
    """
    return body if source is to else to.write_request(kind, source.read_request(kind, body))


def response_translator(
    kind: Kind,
    source: Dialect,
    to: Dialect,
    *,
    model: str,
    answer_id: str,
    started_at: datetime,
    form: ReplyForm | None = None,
) -> "ResponseTranslator":
    """Without a `form` nothing is withheld."""
    form = form or ReplyForm()
    if kind == "embed":
        return _EmbedTranslator(source, to, model, started_at, form)
    if source is to:
        return _Verbatim(to, form)
    writer = to.writer(kind, model, answer_id, started_at, include_usage=form.include_usage)
    return _Translator(kind, source, to, writer, started_at)


class ResponseTranslator(ABC):
    """`finished` is set by the terminal frame; then `error` says whether, and how, the answer went wrong."""

    def __init__(self, source: Dialect, to: Dialect) -> None:
        self._source = source
        self._to = to
        self.finished = False
        self.error: str | None = None

    def feed(self, frame: Frame, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        error = error_message(frame)
        if error is None:
            return self._translated(frame, at)
        return self._fail(error, frame if self._source is self._to else None)

    def finish(self, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        frames = self._ending(at)
        if frames is None:
            return self._fail(CUT_SHORT)
        self.finished = True
        return frames

    def _fail(self, message: str, frame: Frame | None = None) -> list[Frame]:
        self.finished = True
        self.error = message
        return [frame or self._to.error(500, message)]

    @abstractmethod
    def _translated(self, frame: Frame, at: datetime) -> list[Frame]: ...

    def _ending(self, at: datetime) -> list[Frame] | None:
        """What is left to say when the source has ended; None when it was cut short."""
        return None


class _Translator(ResponseTranslator):
    """By way of neutral pieces."""

    def __init__(
        self, kind: Kind, source: Dialect, to: Dialect, writer: AnswerWriter, started_at: datetime
    ) -> None:
        super().__init__(source, to)
        self._reader = source.reader(kind, started_at)
        self._writer = writer

    def _translated(self, frame: Frame, at: datetime) -> list[Frame]:
        return self._written(self._reader.feed(frame, at), at)

    def _ending(self, at: datetime) -> list[Frame] | None:
        return self._written(self._reader.finish(), at) or None

    def _written(self, pieces: Iterable[Piece], at: datetime) -> list[Frame]:
        frames: list[Frame] = []
        for piece in pieces:
            if isinstance(piece, Delta):
                frames += self._writer.delta(piece, at)
            else:
                self.finished = True
                frames += self._writer.end(piece, at)
        return frames


class _Verbatim(ResponseTranslator):
    """Passed on as it is, but never without its end."""

    def __init__(self, dialect: Dialect, form: ReplyForm) -> None:
        super().__init__(dialect, dialect)
        self._watch = dialect.watch(include_usage=form.include_usage)

    def _translated(self, frame: Frame, at: datetime) -> list[Frame]:
        frames = self._watch.passes(frame)
        self.finished = self._watch.ended
        return frames

    def _ending(self, at: datetime) -> list[Frame] | None:
        return [] if self._watch.complete else None


class _EmbedTranslator(ResponseTranslator):
    """Embeddings come in one piece."""

    def __init__(
        self, source: Dialect, to: Dialect, model: str, started_at: datetime, form: ReplyForm
    ) -> None:
        super().__init__(source, to)
        self._model = model
        self._started_at = started_at
        self._form = form

    def _translated(self, frame: Frame, at: datetime) -> list[Frame]:
        self.finished = True
        self._source.check_embeddings(frame)
        if self._source is self._to:
            return [frame]
        took = nanoseconds((at - self._started_at).total_seconds())
        embeddings = self._source.read_embeddings(frame)
        return [self._to.write_embeddings(embeddings, self._model, took, self._form)]


class IncompleteAnswer(ValueError):
    """The frames so far do not make a whole answer."""


class ResponseFolder:
    """Feed it the frames of one answer, in one dialect, for the one object that they make."""

    def __init__(self, kind: Kind, dialect: Dialect) -> None:
        self._fold = None if kind == "embed" else dialect.fold(kind)
        self._only: Frame | None = None
        self.error: str | None = None

    def feed(self, frame: Frame) -> None:
        error = error_message(frame)
        if error is not None:
            self.error = self.error or error
        elif self._fold is None:
            self._only = frame
        else:
            self._fold.feed(frame)

    @property
    def text(self) -> str:
        return "" if self._fold is None else self._fold.text

    def response(self) -> Frame:
        whole = self._only if self._fold is None else self._fold.response()
        if self.error is not None or whole is None:
            raise IncompleteAnswer(self.error or "the answer has no end yet")
        return whole
