"""/v1/messages: what an Anthropic client calls."""

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api import surfaces
from app.api.direct import json_response, read_as
from app.api.inference import ANTHROPIC_ERRORS, asks
from app.api.parameters import Server
from app.api.routes import Content, Reply, Routes
from app.dialects import ANTHROPIC
from app.dialects.anthropic_requests import CountTokensRequest, MessagesRequest
from app.dialects.framing import parse_frame
from app.dialects.neutral import Request as Asked
from app.dialects.shapes import GarbledAnswer, UntranslatableRequest, error_message
from app.errors import InvalidRequest, Unavailable
from app.identity.scopes import Scope
from app.jobs import verbatim
from app.outbound.errors import OutboundError
from app.targets.config import ECHO_NAME
from app.targets.target import Serving, Target

routes = Routes(ANTHROPIC.name, ANTHROPIC_ERRORS)
COUNT_SECONDS = 10.0
MAX_COUNT_BYTES = 64 * 1024
MAX_MESSAGE = 2000
RETRY_SECONDS = 5.0
# What those answer who know nothing of counting.
_NO_SUCH_CALL = frozenset({404, 405, 501})

asks(routes, ANTHROPIC, ANTHROPIC.paths["chat"], "chat", "Chat, as Anthropic does", MessagesRequest)


class TokenCount(msgspec.Struct):
    input_tokens: Annotated[int, msgspec.Meta(ge=0)]


@routes.post(
    "/v1/messages/count_tokens",
    Scope.JOBS_WRITE,
    "How many tokens a request has, where a target can tell",
    Reply("The count", TokenCount),
    errors=(400, 404, 413, 503),
    request=Content(CountTokensRequest),
)
async def count_tokens(request: Request, server: Server) -> Response:
    asked = await read_as(request, _parse, server.settings.max_json_depth)
    if server.targets.is_empty:
        if asked.model.removesuffix(":latest") != ECHO_NAME:
            return surfaces.unknown_model(ANTHROPIC, asked.model)
        raise _cannot_count(asked.model, [ECHO_NAME])
    serving = await server.targets.serving_surely(asked.model)
    if serving.is_unknown:
        return surfaces.unknown_model(ANTHROPIC, asked.model)
    return await _ask_targets(serving, asked)


def _parse(body: bytes, max_depth: int) -> Asked:
    verbatim.members(body, max_depth)
    return ANTHROPIC.read_count(body)


async def _ask_targets(serving: Serving, asked: Asked) -> Response:
    """The first that can tell. Nobody waits in a queue for that: nothing is generated."""
    unreachable = not serving.ready
    for target in serving.ready:
        try:
            counted = await _ask(target, asked)
        except UntranslatableRequest as problem:
            raise InvalidRequest(str(problem)) from problem
        except (OutboundError, GarbledAnswer):
            target.out_of_date()
            unreachable = True
            continue
        if counted is not None:
            return counted
    if unreachable:
        raise Unavailable(
            f"no target that has model '{asked.model}' and may be able to count can be reached now",
            retry_after=RETRY_SECONDS,
        )
    raise _cannot_count(asked.model, [target.name for target in serving.ready])


async def _ask(target: Target, asked: Asked) -> Response | None:
    """The count, or the target's own refusal; None from a target that cannot count."""
    question = target.dialect.count_request(asked, target.own_name(asked.model))
    if question is None:
        return None
    path, body = question
    async with target.request("POST", path, msgspec.json.encode(body), COUNT_SECONDS) as answer:
        said = await answer.read(MAX_COUNT_BYTES)
        if answer.status in _NO_SUCH_CALL:
            return None
        told = parse_frame(said)
        if answer.status >= 300:
            message = target.without_token(error_message(told) or f"HTTP {answer.status}")[:MAX_MESSAGE]
            return surfaces.error_response(ANTHROPIC, max(400, answer.status), message)
    count = target.dialect.read_count(told)
    return None if count is None else json_response(msgspec.json.encode(TokenCount(count)))


def _cannot_count(model: str, targets: list[str]) -> InvalidRequest:
    names = ", ".join([f"'{name}'" for name in targets])
    return InvalidRequest(f"the tokens of model '{model}' cannot be counted: {names} has no call for that")
