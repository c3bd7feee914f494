"""Answers that stay in their dialect: passed on as they are, but never without their end."""

from datetime import datetime

from app.dialects.embeddings import check_embed_answer
from app.dialects.errors import error_message, surface_error
from app.dialects.shapes import Dialect, Frame, Kind, as_count, as_dict, as_list
from app.dialects.to_openai import CUT_SHORT


class Verbatim:
    """Withholds only what the caller did not ask for: the usage that we ask every OpenAI target to send."""

    def __init__(self, kind: Kind, dialect: Dialect, *, include_usage: bool) -> None:
        self._kind = kind
        self._dialect = dialect
        self._include_usage = include_usage
        self.finished = False
        self.error: str | None = None
        self._begun: set[int] = set()
        self._ended: set[int] = set()

    def feed(self, frame: Frame, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        self.error = error_message(frame)
        if self.error is not None:
            self.finished = True
            return [frame]
        if self._kind == "embed":
            check_embed_answer(frame, self._dialect)
            self.finished = True
        elif self._dialect == "ollama":
            self.finished = frame.get("done") is True
        else:
            return self._openai_chunk(frame)
        return [frame]

    def _openai_chunk(self, chunk: Frame) -> list[Frame]:
        choices = [as_dict(choice) for choice in as_list(chunk.get("choices"))]
        # The usage chunk follows the finish reasons, so only the end of the source is the end.
        self._begun |= {as_count(choice.get("index")) for choice in choices}
        self._ended |= {as_count(choice.get("index")) for choice in choices if choice.get("finish_reason")}
        whole = any("message" in choice for choice in choices)
        if self._include_usage or whole or "usage" not in chunk:
            return [chunk]
        if not choices:
            return []
        return [{name: value for name, value in chunk.items() if name != "usage"}]

    def finish(self, at: datetime) -> list[Frame]:
        if self.finished:
            return []
        self.finished = True
        if self._begun and self._begun == self._ended:
            return []
        self.error = CUT_SHORT
        return [surface_error(self._dialect, 500, CUT_SHORT)]
