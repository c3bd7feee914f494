"""One way in for answers: any kind, any pair of dialects, streamed or whole.

    translator = response_translator("chat", source="openai", to="ollama", model=…, answer_id=…, started_at=…)
    for frame in …: out += translator.feed(frame, at=now)
    out += translator.finish(at=now)

Whatever happens to the source, the frames that come out end with exactly one terminal frame, done or error.
Clocks and ids are the caller's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from app.dialects.embeddings import check_embed_answer, embed_answer_to_ollama, embed_answer_to_openai
from app.dialects.errors import error_message, surface_error
from app.dialects.fold import ResponseFolder
from app.dialects.requests import asks_for_usage
from app.dialects.runner import is_legacy_embeddings
from app.dialects.shapes import Dialect, Frame, Kind, as_text, nanoseconds
from app.dialects.to_ollama import OpenAIToOllama
from app.dialects.to_openai import CUT_SHORT, OllamaToOpenAI
from app.dialects.verbatim import Verbatim


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """How a caller wants its answer. A job's log is best kept with its usage, whatever its caller asked."""

    include_usage: bool = True
    encoding_format: str = "float"
    legacy_embeddings: bool = False

    @classmethod
    def asked_by(cls, body: Mapping[str, Any]) -> "ReplyForm":
        """What a request, in the dialect of its caller, says about it."""
        return cls(
            include_usage=asks_for_usage(body) or body.get("stream") is not True,
            encoding_format=as_text(body.get("encoding_format")) or "float",
            legacy_embeddings=is_legacy_embeddings(body),
        )


class ResponseTranslator(Protocol):
    """`finished` is set by the terminal frame; then `error` says whether, and how, the answer went wrong."""

    finished: bool
    error: str | None

    def feed(self, frame: Frame, at: datetime) -> list[Frame]: ...

    def finish(self, at: datetime) -> list[Frame]: ...


def response_translator(
    kind: Kind,
    source: Dialect,
    to: Dialect,
    *,
    model: str,
    answer_id: str,
    started_at: datetime,
    form: ReplyForm | None = None,
) -> ResponseTranslator:
    """`model` is echoed under the name the caller used; without a `form` nothing is withheld."""
    form = form or ReplyForm()
    if source == to:
        return Verbatim(kind, to, include_usage=form.include_usage)
    if kind == "embed":
        return _EmbedTranslator(to, model, started_at, form)
    if to == "openai":
        return OllamaToOpenAI(
            kind, model=model, answer_id=answer_id, started_at=started_at, include_usage=form.include_usage
        )
    return OpenAIToOllama(kind, model=model, started_at=started_at)


def translate_response(
    kind: Kind,
    answer: Frame,
    source: Dialect,
    to: Dialect,
    *,
    model: str,
    answer_id: str,
    at: datetime,
    form: ReplyForm | None = None,
) -> Frame:
    """A whole answer, the way its frames would have gone. An error comes out as the error body of `to`."""
    if source == to:
        return answer
    translator = response_translator(
        kind, source, to, model=model, answer_id=answer_id, started_at=at, form=form
    )
    folder = ResponseFolder(kind, to)
    for frame in (*translator.feed(answer, at), *translator.finish(at)):
        folder.feed(frame)
    if folder.error is not None:
        return surface_error(to, 500, folder.error)
    return folder.response()


class _EmbedTranslator:
    """Embeddings come in one piece."""

    def __init__(self, to: Dialect, model: str, started_at: datetime, form: ReplyForm) -> None:
        self._to = to
        self._model = model
        self._started_at = started_at
        self._form = form
        self.finished = False
        self.error: str | None = None

    def feed(self, frame: Frame, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        self.finished = True
        self.error = error_message(frame)
        if self.error is not None:
            return [surface_error(self._to, 500, self.error)]
        check_embed_answer(frame, "ollama" if self._to == "openai" else "openai")
        if self._to == "openai":
            return [embed_answer_to_openai(frame, self._model, self._form.encoding_format)]
        total = nanoseconds((at - self._started_at).total_seconds())
        return [embed_answer_to_ollama(frame, self._model, total, self._form.legacy_embeddings)]

    def finish(self, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        self.finished = True
        self.error = CUT_SHORT
        return [surface_error(self._to, 500, CUT_SHORT)]
