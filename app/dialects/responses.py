"""Responses: OpenAI's newer way to ask a model, at /v1/responses. No target is asked that way."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import msgspec

from app.dialects.neutral import Delta, Part, Request
from app.dialects.neutral_frames import NeutralDialect, frame_of
from app.dialects.openai import error_body
from app.dialects.protocol import Body, StreamEncoder
from app.dialects.responses_answers import (
    RESPONSE_PREFIX,
    Echoed,
    ResponseEvents,
    ResponsesFold,
    ResponsesWriter,
    calls_of,
    thinking_of,
    whole_response,
)
from app.dialects.responses_request import RefusedRequest, ResponsesBody, converted, read, refusal_of
from app.dialects.shapes import Frame, Kind
from app.errors import InvalidRequest


class Responses(NeutralDialect):
    name = "responses"
    path_prefix = "/v1/responses"
    paths: ClassVar = {"chat": "/v1/responses"}
    sse = True
    streams_unasked = False
    body_shape = ResponsesBody
    wire_object = "response"
    id_prefix = RESPONSE_PREFIX
    numbers_events = True
    writer = ResponsesWriter
    fold = ResponsesFold

    def read_body(self, kind: Kind, body: bytes) -> Body:
        """Whatever is wrong with it, whoever is going to answer, is known at once."""
        given = super().read_body(kind, body)
        try:
            read(cast(ResponsesBody, given))
        except RefusedRequest as refused:
            raise _invalid(refused) from refused
        return given

    def wrong_shape(self, problem: msgspec.ValidationError) -> InvalidRequest:
        return _invalid(refusal_of(problem))

    def read_request(self, kind: Kind, body: Frame) -> Request:
        return read(converted(body))

    def encoder(self, payload: str, answer_id: str) -> StreamEncoder:
        return ResponseEvents(self, payload, answer_id)

    def unsaid(self, kind: Kind, result: Frame) -> Part | None:
        return frame_of(Delta(thinking=thinking_of(result), calls=calls_of(result))) or None

    def identified(self, kind: Kind, response: Frame, answer_id: str, asked: Mapping[str, Any]) -> Frame:
        return whole_response(msgspec.convert(asked, Echoed), answer_id, response)

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Frame:
        return error_body(status, message, param, code)


def _invalid(refused: RefusedRequest) -> InvalidRequest:
    return InvalidRequest(str(refused), param=refused.param, code=refused.code)
