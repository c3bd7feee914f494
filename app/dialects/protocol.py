"""What a dialect is: everything that Foreman needs to know of one way of speaking to models.

A new one is a subclass of `Dialect` in a file of its own, a line in `DIALECTS` and the routes of its surface.
Within one dialect nothing is translated: bodies and frames pass as they are. Between two of them everything
goes by way of what stands in neutral.py, so that no dialect knows another.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal

import msgspec

from app.dialects.framing import EVENT_STREAM, NDJSON, FrameDecoder, TextDecoder
from app.dialects.neutral import Delta, End, Part, Request
from app.dialects.runner import RunnerOptions
from app.dialects.shapes import Frame, GarbledAnswer, Kind, error_message
from app.dialects.usage import Usage
from app.errors import InvalidRequest

Loading = Literal["load", "unload"]
# A target's models and what is resident, as it describes them, and its version.
Told = tuple[list[Frame], list[Frame], str | None]
_MAX_MODEL_CHARS = 512


class AnyObject(msgspec.Struct, frozen=True, gc=False):
    """Its members are the target's business: they are read over, but not kept."""


class StreamOptions(msgspec.Struct, frozen=True, gc=False):
    include_usage: msgspec.Raw = msgspec.Raw(b"false")


class Body(msgspec.Struct, frozen=True, gc=False):
    """What Foreman itself needs to understand of a body; the rest is the target's business."""

    model: str = ""
    messages: list[AnyObject] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def runner_options(self) -> RunnerOptions | None:
        """Those that decide which resident model can serve it, where the dialect has them."""
        return None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bytes(self.stream_options.include_usage) == b"true"


@dataclass(frozen=True, slots=True)
class Question:
    """A path that is asked for the inventory of a target."""

    path: str
    # Without this answer it is no target.
    needed: bool = True
    # Asked once for as long as the target is awake.
    lasting: bool = False


class IncompleteAnswer(ValueError):
    """The frames so far do not make a whole answer."""


class AnswerReader(ABC):
    """Looks at the frames of one answer: when it ends, what it costs, and what it says in neutral words.

    Errors are not its business. A frame that stays in its dialect is only noted.
    """

    # The last frame has passed.
    ended = False

    @abstractmethod
    def __init__(self, kind: Kind, started_at: datetime) -> None: ...

    @property
    def complete(self) -> bool:
        """Whether the source may end here."""
        return self.ended

    @abstractmethod
    def note(self, frame: Frame, at: datetime) -> None: ...

    def note_text(self, text: str, at: datetime) -> None:
        """The same for a frame that is the last one again, but for its text."""
        return

    @abstractmethod
    def deltas(self, frame: Frame) -> list[Delta]:
        """What a frame says, after it was noted."""

    @abstractmethod
    def end(self) -> End | None:
        """Asked for when the last frame has passed, or the source has ended: None if that was too early."""

    @abstractmethod
    def usage(self) -> Usage: ...


class AnswerWriter(ABC):
    """The frames of one answer: from neutral pieces, or from a job's log and its result."""

    def __init__(
        self, kind: Kind, model: str, answer_id: str, started_at: datetime, *, include_usage: bool = True
    ) -> None:
        """`model` is echoed under the name the caller used."""
        self._kind = kind
        self._model = model
        self._answer_id = answer_id
        self._started_at = started_at
        self._include_usage = include_usage

    @abstractmethod
    def delta(self, delta: Delta, at: datetime) -> list[Frame]: ...

    @abstractmethod
    def end(self, end: End, at: datetime) -> list[Frame]: ...

    @abstractmethod
    def say(self, part: Part, at: datetime) -> Frame:
        """A part that was kept in this dialect. In lines of JSON, nothing said keeps a connection alive:
        clients take it, unlike an empty line."""

    @abstractmethod
    def ending(self, result: Mapping[str, Any], at: datetime) -> list[Frame]:
        """The last frames of a result in this dialect: how it ended, and the counts."""


class Fold(ABC):
    """From the frames of a stream to the one object that a caller gets who did not ask to stream."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        # Embeddings come in one piece.
        self._only: Frame | None = None
        self.error: str | None = None

    def feed(self, frame: Frame) -> None:
        error = error_message(frame)
        if error is not None:
            self.error = self.error or error
        elif self._kind == "embed":
            self._only = frame
        else:
            self._add(frame)

    def response(self) -> Frame:
        whole = self._only or self._whole()
        if self.error is not None or whole is None:
            raise IncompleteAnswer(self.error or "the answer has no end yet")
        return whole

    @abstractmethod
    def say(self, text: str) -> None:
        """The same as a frame that goes on with the first choice's text and says nothing else that is new."""

    @abstractmethod
    def _add(self, frame: Frame) -> None: ...

    @abstractmethod
    def _whole(self) -> Frame | None:
        """None while something is missing."""


class Dialect(ABC):
    """All methods are pure."""

    name: ClassVar[str]
    # What the paths of its surface begin with.
    path_prefix: ClassVar[str]
    # Where its clients call each kind of job.
    paths: ClassVar[Mapping[str, str]]
    # Streams are server-sent events, or else lines of JSON.
    sse: ClassVar[bool]
    # Whether an answer is streamed to a caller who does not say.
    streams_unasked: ClassVar[bool]
    end_of_stream: ClassVar[bytes] = b""
    body_shape: ClassVar[type[Body]] = Body
    inventory_questions: ClassVar[tuple[Question, ...]]
    # Whether a target's inventory says which models are resident.
    tells_residents: ClassVar[bool] = False
    # Where an answer has its embeddings.
    embeddings_in: ClassVar[tuple[str, ...]]
    # Whether a whole answer keeps what stands beside the text in the frames of a stream.
    keeps_envelopes: ClassVar[bool] = False

    reader: ClassVar[type[AnswerReader]]
    writer: ClassVar[type[AnswerWriter]]
    fold: ClassVar[type[Fold]]

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(self.body_shape).decode
        self.stream_type = EVENT_STREAM if self.sse else NDJSON

    # -- requests ------------------------------------------------------------------------------------

    def read_body(self, kind: Kind, body: bytes) -> Body:
        """Raises InvalidRequest."""
        try:
            given = self._decode(body)
        except msgspec.ValidationError as problem:
            raise InvalidRequest(f"invalid request: {problem}") from problem
        if not given.model or "\0" in given.model or len(given.model) > _MAX_MODEL_CHARS:
            raise InvalidRequest("model is required")
        return given

    def asks_to_stream(self, kind: Kind, stream: bool | None) -> bool:
        return kind != "embed" and (self.streams_unasked if stream is None else stream)

    @abstractmethod
    def endpoint(self, kind: Kind, body: Mapping[str, Any]) -> str:
        """Where a target takes this body."""

    @abstractmethod
    def read_request(self, kind: Kind, body: Frame) -> Request:
        """Raises UntranslatableRequest, as does `write_request`, with a message for the caller."""

    @abstractmethod
    def write_request(self, kind: Kind, request: Request) -> Frame: ...

    @abstractmethod
    def streaming_request(self, kind: Kind, body: Frame, own_name: str) -> Frame:
        """The same body, streamed and with usage even if its caller did not ask: for progress and ledger.

        `own_name` is how the target spells the model, where targets know one spelling only.
        """

    def only_loads(self, kind: Kind, body: Mapping[str, Any]) -> Loading | None:
        """Whether a request only asks to load or unload its model."""
        return None

    def loading_answer(self, kind: Kind, model: str, at: datetime, reason: Loading) -> Frame:
        """The whole answer to such a request, where a target has nothing to load."""
        raise NotImplementedError(f"{self.name} has no request that only loads a model")

    def load_request(self, kind: Kind, body: Mapping[str, Any]) -> Frame | None:
        """The call that makes a job's model resident as the job will need it; None where there is none."""
        return None

    # -- answers -------------------------------------------------------------------------------------

    def decoder(self) -> FrameDecoder:
        return FrameDecoder(sse=self.sse)

    def text_decoder(self, kind: Kind) -> TextDecoder:
        """The same for the answers of a target, which are nearly all text."""
        return TextDecoder(partial(self.plain_text, kind), sse=self.sse)

    def encode(self, frame: Frame) -> bytes:
        body = msgspec.json.encode(frame)
        return b"data: " + body + b"\n\n" if self.sse else body + b"\n"

    @abstractmethod
    def part_of(self, kind: Kind, frame: Frame) -> Part | None:
        """What a frame says; None when it says nothing, as the first and the last one often do."""

    @abstractmethod
    def plain_text(self, kind: Kind, frame: Frame) -> str | None:
        """The text of a frame that says nothing else, as nearly all do; None for every other one."""

    @abstractmethod
    def unsaid(self, kind: Kind, result: Frame) -> Part | None:
        """What a result says besides its text."""

    def identified(self, kind: Kind, response: Frame, answer_id: str) -> Frame:
        """One id from the first chunk to the result, whoever made the answer."""
        return response

    def check_embeddings(self, answer: Mapping[str, Any]) -> None:
        """Raises GarbledAnswer for JSON that holds no embeddings."""
        if not any(isinstance(answer.get(name), list) for name in self.embeddings_in):
            raise GarbledAnswer("no embeddings", str(answer)[:500])

    @abstractmethod
    def read_embeddings(self, answer: Mapping[str, Any]) -> tuple[list[Any], int]:
        """The vectors, and the tokens that were read."""

    @abstractmethod
    def write_embeddings(
        self, vectors: list[Any], tokens: int, model: str, total_duration: int, asked: Mapping[str, Any]
    ) -> Frame:
        """`asked` is the caller's own request: it says in which form."""

    # -- errors --------------------------------------------------------------------------------------

    @abstractmethod
    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Frame:
        """The error body, or the in-band error frame."""

    def model_not_found(self, model: str) -> Frame:
        """Ollama's own words for a 404, in the shape of the surface."""
        return self.error(404, f"model '{model}' not found", param="model", code="model_not_found")

    # -- models --------------------------------------------------------------------------------------

    @abstractmethod
    def read_inventory(self, answers: Mapping[str, Frame | None]) -> Told:
        """From the answers to `inventory_questions`, by path. Raises GarbledAnswer."""

    @abstractmethod
    def model_name(self, model: Frame) -> str: ...

    @abstractmethod
    def model_created(self, model: Frame) -> int:
        """In seconds since 1970; 0 when it is not known."""

    @abstractmethod
    def model_entry(self, name: str, created: int, own: Frame | None) -> Frame:
        """A model in the list of all; `own` is how its target describes it in this dialect."""

    @abstractmethod
    def models_list(self, entries: list[Frame]) -> Frame: ...
