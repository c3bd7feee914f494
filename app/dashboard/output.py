"""What a job has said: of one that runs the last of it, as its log has it; of one that is done the answer.

An open page asks for it several times a second, so it is never all of a long output: rows of the log keep
their place, new ones come below, and the oldest go.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from app.dashboard.texts import visible
from app.dialects import dialect_named
from app.dialects.shapes import Kind, as_dict, as_frames, as_text
from app.jobs.artifacts import completion
from app.store.job_view import OutputRow, ViewedJob

# Of a running job so much of its log is shown, in bytes.
WINDOW_BYTES = 24_000
# Of one that has ended, in characters.
SHOWN_CHARACTERS = 64_000


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of output: `text`, `thinking` or `call`; and its place, by the row of the log that has it."""

    kind: str
    text: str
    place: str


@dataclass(slots=True)
class Output:
    pieces: list[Said] = field(default_factory=list)
    # Characters before the first piece, and behind the last.
    before: int = 0
    after: int = 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if piece.kind == "text")


def of_rows(rows: Iterable[OutputRow]) -> Output:
    """The end of what a run said, as far as the log was read."""
    output = Output()
    for row in rows:
        data = _decoded(row.data)
        parts = data.get("parts")
        if not output.pieces:
            offset = data.get("offset")
            output.before = offset if isinstance(offset, int) else 0
        said = [
            each
            for part in (parts if isinstance(parts, list) else [data.get("text")])
            for each in _said(part)
        ]
        output.pieces += _joined(said, row.seq)
    return output


def _joined(said: Iterable[tuple[str, str]], row: int) -> list[Said]:
    """What stands side by side and is of one kind is one piece."""
    return [
        Said(kind, "".join(text for _, text in texts), f"{row}-{number}")
        for number, (kind, texts) in enumerate(groupby(said, key=itemgetter(0)))
    ]


def of_result(job: ViewedJob) -> Output | None:
    """The answer of an LLM job; None where there is none, or it is too long to be read."""
    if job.result is None or job.result_bytes != len(job.result.encode()):
        return None
    text = completion(job.kind, job.result)
    if text is None:
        return None
    besides = _besides_its_text(job, _decoded(job.result))
    said = [*_said(besides), ("text", visible(text[:SHOWN_CHARACTERS]))]
    return Output(_joined([each for each in said if each[1]], 0), after=max(0, len(text) - SHOWN_CHARACTERS))


def _besides_its_text(job: ViewedJob, result: dict[str, Any]) -> Any:
    """As its dialect has it; workers may have answered in another one."""
    kind: Kind = "chat" if job.kind == "chat" else "generate"
    unsaid = dialect_named(job.dialect).unsaid(kind, result)
    if unsaid is not None:
        return unsaid
    choices = as_frames(result.get("choices"))
    message = as_dict(choices[0].get("message")) if choices else as_dict(result.get("message")) or result
    return {**message, "content": "", "response": ""}


def _said(part: Any) -> Iterable[tuple[str, str]]:
    """What a frame of any dialect says that a person would read."""
    if isinstance(part, str):
        if part:
            yield "text", visible(part)
        return
    frame = as_dict(part)
    # A target's own, as it was kept.
    frame = as_dict(frame.get("frame")) or frame
    choices = as_frames(frame.get("choices"))
    if choices:
        frame = as_dict(choices[0].get("delta")) or as_dict(choices[0].get("message")) or choices[0]
    message = as_dict(frame.get("message")) or frame
    for name in ("thinking", "reasoning_content", "reasoning"):
        if thought := as_text(message.get(name)):
            yield "thinking", visible(thought)
    for name in ("content", "response", "text"):
        if said := as_text(message.get(name)):
            yield "text", visible(said)
    for call in as_frames(message.get("tool_calls")):
        function = as_dict(call.get("function")) or call
        arguments = function.get("arguments")
        told = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        yield "call", visible(f"{as_text(function.get('name'))}({told})")


def _decoded(text: str) -> dict[str, Any]:
    try:
        return as_dict(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return {}
