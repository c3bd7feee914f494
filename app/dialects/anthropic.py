"""Anthropic's messages: what its callers say and hear. No target speaks it; their answers are translated."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from app.dialects.anthropic_answers import AnthropicEncoder, AnthropicWriter, unsaid, whole_message
from app.dialects.anthropic_requests import (
    CountTokensRequest,
    MessagesRequest,
    neutral_request,
    omits_thinking,
    told,
)
from app.dialects.neutral import Part, Request
from app.dialects.neutral_frames import NeutralDialect
from app.dialects.protocol import Body, StreamEncoder, check_model
from app.dialects.shapes import Frame, Kind, UntranslatableRequest, as_dict, as_list, as_text
from app.errors import InvalidRequest

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_decode = msgspec.json.Decoder(MessagesRequest).decode
_decode_count = msgspec.json.Decoder(CountTokensRequest).decode


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """What the events of an answer need of their request."""

    model: str
    thinking: dict[str, Any] | None = None


_decode_asked = msgspec.json.Decoder(_Asked).decode


class Anthropic(NeutralDialect):
    name = "anthropic"
    path_prefix = "/v1/messages"
    paths: ClassVar = {"chat": "/v1/messages"}
    sse = True
    streams_unasked = False
    request_id_header = b"request-id"
    writer = AnthropicWriter

    def read_body(self, kind: Kind, body: bytes) -> Body:
        """All of it is looked at: no job is made of what no target would be asked."""
        try:
            asked = _decode(body)
            neutral_request(asked)
        except (msgspec.ValidationError, UntranslatableRequest) as problem:
            raise _refused(problem) from problem
        check_model(asked.model)
        return Body(model=asked.model, stream=asked.stream)

    def read_count(self, body: bytes) -> Request:
        """The request of one who only wants to know how many tokens it has. Raises InvalidRequest."""
        try:
            request = neutral_request(_decode_count(body))
        except (msgspec.ValidationError, UntranslatableRequest) as problem:
            raise _refused(problem) from problem
        check_model(request.model)
        return request

    def read_request(self, kind: Kind, body: Frame) -> Request:
        try:
            return neutral_request(msgspec.convert(body, MessagesRequest))
        except msgspec.ValidationError as problem:
            raise UntranslatableRequest(told(problem)) from problem

    def encoder(self, payload: str, answer_id: str) -> StreamEncoder:
        asked = _decode_asked(payload)
        return AnthropicEncoder(asked.model, answer_id, omits_thinking=omits_thinking(asked.thinking))

    def part_of(self, kind: Kind, frame: Frame) -> Part | None:
        """Plain text stays a text: nobody goes on behind an event of these, so that texts may be joined."""
        part = super().part_of(kind, frame)
        return part["text"] if isinstance(part, dict) and part.keys() == {"text"} else part

    def text_part(self, text: str) -> Part:
        return text

    def unsaid(self, kind: Kind, result: Frame) -> Part | None:
        return unsaid(result) or None

    def identified(self, kind: Kind, response: Frame, answer_id: str, asked: Mapping[str, Any]) -> Frame:
        is_silent = omits_thinking(as_dict(asked.get("thinking")))
        return whole_message(
            as_text(asked.get("model")),
            answer_id,
            response,
            omits_thinking=is_silent,
            stop_sequences=as_list(asked.get("stop_sequences")),
        )

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Frame:
        fallback = "invalid_request_error" if 400 <= status < 500 else "api_error"
        return {"type": "error", "error": {"type": _ERROR_TYPES.get(status, fallback), "message": message}}


def _refused(problem: Exception) -> InvalidRequest:
    return InvalidRequest(told(problem) if isinstance(problem, msgspec.ValidationError) else str(problem))
