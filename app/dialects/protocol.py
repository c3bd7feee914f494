"""What a dialect is: everything that Foreman needs to know of one way of speaking to models.

Callers speak a `Dialect`, and some of these are spoken by targets as well: a `TargetDialect`. A new one is
a subclass in a file of its own, a line in `DIALECTS` and the routes of its surface. Within one dialect
nothing is translated: bodies and frames pass as they are. Between two of them everything goes by way of what
stands in neutral.py, so that no dialect knows another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal

import msgspec

from app.dialects.facts import ModelFacts
from app.dialects.framing import EVENT_STREAM, NDJSON, SSE_KEEP_ALIVE, FrameDecoder, TextDecoder
from app.dialects.kept import FrameKeeper
from app.dialects.neutral import Delta, End, Part, Request
from app.dialects.runner import RunnerOptions
from app.dialects.shapes import Frame, GarbledAnswer, Kind, error_message
from app.dialects.usage import Usage
from app.errors import InvalidRequest

Loading = Literal["load", "unload"]
# A target's models and what is resident, as it describes them, and its version.
Told = tuple[list[Frame], list[Frame], str | None]
_MAX_MODEL_CHARS = 512


def is_model_name(model: str) -> bool:
    return bool(model) and "\0" not in model and len(model) <= _MAX_MODEL_CHARS


def check_model(name: str) -> None:
    """Raises InvalidRequest for what cannot be the name of a model."""
    if not is_model_name(name):
        raise InvalidRequest("model is required", param="model")


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

    def told(self, part: Part, at: datetime) -> list[Frame]:
        """The frames of a part, which may be several where a target's own were kept (see kept.py)."""
        return [self.say(part, at)]

    def on_wire(self, part: Part, at: datetime, encode: Callable[[Frame], bytes]) -> bytes:
        """The same, as they are sent: `encode` is of the answer's encoder."""
        return b"".join([encode(each) for each in self.told(part, at)])

    def foresee(self, result: Mapping[str, Any]) -> None:
        """The whole answer is known before any of its frames: it may say what those look like."""
        return

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


class StreamEncoder:
    """The bytes of one stream, for one reader: most dialects put each frame on the wire as it is."""

    def __init__(self, dialect: "Dialect") -> None:
        self._dialect = dialect

    def opening(self) -> bytes:
        """What can be said before there is an answer, to callers who want to hear that it is waited for."""
        return b""

    def frame(self, frame: Frame) -> bytes:
        return self._dialect.encode(frame)

    def error(self, error: Frame) -> bytes:
        """The last frame of a stream that went wrong."""
        return self._dialect.encode(error) + self._dialect.end_of_stream

    def end(self) -> bytes:
        """Behind the last frame of an answer."""
        return self._dialect.end_of_stream

    def silence(self, nothing_said: Frame) -> bytes:
        """Keeps the connection alive; in lines of JSON only a frame can that says nothing."""
        return SSE_KEEP_ALIVE if self._dialect.sse else self._dialect.encode(nothing_said)


class Dialect(ABC):
    """What callers speak. All methods are pure."""

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
    # Where its clients look for the id of a request, if not in X-Request-Id.
    request_id_header: ClassVar[bytes | None] = None
    body_shape: ClassVar[type[Body]] = Body
    # Where an answer has its embeddings, if there are any in this dialect.
    embeddings_in: ClassVar[tuple[str, ...]] = ()
    # What OpenAI's clients call a job of this dialect when they are told of it, and what its id begins with;
    # None where they have no name for it.
    wire_object: ClassVar[str | None] = None
    id_prefix: ClassVar[str] = ""
    # Whether a reader may go on behind any event that it has: then what it has must soon be in the log.
    numbers_events: ClassVar[bool] = False
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
            raise self.wrong_shape(problem) from problem
        check_model(given.model)
        return given

    def wrong_shape(self, problem: msgspec.ValidationError) -> InvalidRequest:
        return InvalidRequest(f"invalid request: {problem}")

    def asks_to_stream(self, kind: Kind, asked: Body) -> bool:
        return kind != "embed" and (self.streams_unasked if asked.stream is None else asked.stream)

    @abstractmethod
    def read_request(self, kind: Kind, body: Frame) -> Request:
        """Raises UntranslatableRequest, with a message for the caller."""

    def only_loads(self, kind: Kind, body: Mapping[str, Any]) -> Loading | None:
        """Whether a request only asks to load or unload its model."""
        return None

    def loading_answer(self, kind: Kind, model: str, at: datetime, reason: Loading) -> Frame:
        """The whole answer to such a request, where a target has nothing to load."""
        raise NotImplementedError(f"{self.name} has no request that only loads a model")

    # -- answers -------------------------------------------------------------------------------------

    def encoder(self, payload: str, answer_id: str) -> StreamEncoder:
        """For the answer to this request."""
        return StreamEncoder(self)

    def encode(self, frame: Frame) -> bytes:
        body = msgspec.json.encode(frame)
        return b"data: " + body + b"\n\n" if self.sse else body + b"\n"

    @abstractmethod
    def part_of(self, kind: Kind, frame: Frame) -> Part | None:
        """What a frame says; None when it says nothing, as the first and the last one often do."""

    def plain_text(self, kind: Kind, frame: Frame) -> str | None:
        """The text of a frame that says nothing else, as nearly all do; None for every other one."""
        return None

    def text_part(self, text: str) -> Part:
        """How the log keeps a piece of plain text. Texts that stand side by side may be joined there."""
        return text

    def keeper(self, kind: Kind) -> FrameKeeper | None:
        """For answers of targets that speak this dialect, too: they are kept as they come."""
        return None

    @abstractmethod
    def unsaid(self, kind: Kind, result: Frame) -> Part | None:
        """What a result says besides its text."""

    def identified(self, kind: Kind, response: Frame, answer_id: str, asked: Mapping[str, Any]) -> Frame:
        """The whole answer, under one id from the first chunk to the result, whoever made it."""
        return response

    def check_embeddings(self, answer: Mapping[str, Any]) -> None:
        """Raises GarbledAnswer for JSON that holds no embeddings."""
        if not any(isinstance(answer.get(name), list) for name in self.embeddings_in):
            raise GarbledAnswer("no embeddings", str(answer)[:500])

    def read_embeddings(self, answer: Mapping[str, Any]) -> tuple[list[Any], int]:
        """The vectors, and the tokens that were read."""
        raise NotImplementedError(f"{self.name} has no embeddings")

    def write_embeddings(
        self, vectors: list[Any], tokens: int, model: str, total_duration: int, asked: Mapping[str, Any]
    ) -> Frame:
        """`asked` is the caller's own request: it says in which form."""
        raise NotImplementedError(f"{self.name} has no embeddings")

    # -- errors --------------------------------------------------------------------------------------

    @abstractmethod
    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Frame:
        """The error body, or the in-band error frame."""

    def model_not_found(self, model: str) -> Frame:
        """Ollama's own words for a 404, in the shape of the surface."""
        return self.error(404, f"model '{model}' not found", param="model", code="model_not_found")


class TargetDialect(Dialect):
    """What targets speak, and their callers too."""

    inventory_questions: ClassVar[tuple[Question, ...]]
    # Whether a target's inventory says which models are resident.
    tells_residents: ClassVar[bool] = False
    # Whether the frames of a stream make the very answer that a call without one gets.
    streams_make_wholes: ClassVar[bool] = True

    # -- requests ------------------------------------------------------------------------------------

    @abstractmethod
    def endpoint(self, kind: Kind, body: Mapping[str, Any]) -> str:
        """Where a target takes this body."""

    @abstractmethod
    def write_request(self, kind: Kind, request: Request) -> Frame:
        """Raises UntranslatableRequest, with a message for the caller."""

    @abstractmethod
    def streaming_request(self, kind: Kind, body: Frame, own_name: str) -> Frame:
        """The same body, streamed and with usage even if its caller did not ask: for progress and ledger.

        `own_name` is how the target spells the model, where targets know one spelling only.
        """

    def own_request(self, body: Frame, own_name: str) -> Frame:
        """The body as its caller wrote it, but for the spelling of its model."""
        return body

    def load_request(self, kind: Kind, body: Mapping[str, Any]) -> Frame | None:
        """The call that makes a job's model resident as the job will need it; None where there is none."""
        return None

    def count_request(self, request: Request, own_name: str) -> tuple[str, Frame] | None:
        """The path and the body that ask a target how many tokens this chat has; None where none can tell.

        Raises UntranslatableRequest, with a message for the caller.
        """
        return None

    def read_count(self, answer: Frame) -> int | None:
        """What it answers to that; None where that is no count."""
        return None

    # -- answers -------------------------------------------------------------------------------------

    def decoder(self) -> FrameDecoder:
        return FrameDecoder(sse=self.sse)

    def text_decoder(self, kind: Kind) -> TextDecoder:
        """The same for the answers of a target, which are nearly all text."""
        return TextDecoder(partial(self.plain_text, kind), sse=self.sse)

    def check_whole(self, answer: Frame) -> None:
        """Raises GarbledAnswer for JSON that is no answer to a call without a stream."""
        return

    # -- models --------------------------------------------------------------------------------------

    @abstractmethod
    def read_inventory(self, answers: Mapping[str, Frame | None]) -> Told:
        """From the answers to `inventory_questions`, by path. Raises GarbledAnswer."""

    @abstractmethod
    def model_name(self, model: Frame) -> str: ...

    @abstractmethod
    def model_created(self, model: Frame) -> int:
        """In seconds since 1970; 0 when it is not known."""

    def model_facts(self, model: Frame) -> ModelFacts:
        """What a target's list of models tells of one beside its name."""
        return ModelFacts()

    @abstractmethod
    def model_entry(self, name: str, created: int, own: Frame | None) -> Frame:
        """A model in the list of all; `own` is how its target describes it in this dialect."""

    @abstractmethod
    def models_list(self, entries: list[Frame]) -> Frame: ...
