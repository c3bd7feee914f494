"""/v1/responses: a response is a job, and its id is the job's with a prefix.

One that is waited for is a synchronous call like any other. One in the background is queued and answered at
once; it can be polled, followed from any of its events, cancelled and deleted.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import msgspec
import orjson
from fastapi import Depends, Path, Query
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from app.api import admission, surfaces
from app.api.direct import encode, json_response, release_body
from app.api.inference import OPENAI_ERRORS, AnyDocument, extensions
from app.api.jobs import cancel_job, wait_until_terminal
from app.api.open_streams import OpenStream, is_stream, long_poll, open_stream
from app.api.parameters import Server, Tenant
from app.api.passthrough import RESTARTED, Call, Waiting, failure_of, is_known, read_call
from app.api.routes import AnswerHeader, Content, Reply, Routes
from app.api.services import Services, services_of, tenant_of
from app.api.webhook_headers import webhook_of, webhook_parameters
from app.dialects import DIALECTS, dialect_named
from app.dialects.responses_answers import (
    RESPONSE_PREFIX,
    ResponseEvents,
    echoed,
    failed_response,
    response,
)
from app.dialects.responses_request import RefusedRequest, ResponsesBody, check_include, items_of
from app.dialects.shapes import Frame, as_list, as_text
from app.errors import ForemanError, InvalidRequest, InvalidTransition, NotFound, Unavailable
from app.events.follow import Ended, Followed, Follower, Output, Quiet, Restarted, earlier_runs
from app.events.frames import GONE
from app.identity.scopes import Scope
from app.jobs import verbatim
from app.jobs.ids import is_id
from app.jobs.states import LIVE, TERMINAL
from app.loops.off_loop import off_loop
from app.store import control, read
from app.store.idempotency import Submission
from app.store.job import Job

DIALECT = DIALECTS["responses"]
ERRORS = replace(
    OPENAI_ERRORS,
    words={
        **OPENAI_ERRORS.words,
        404: "There is no such response, or no target has this model",
        409: "It could not be stopped yet",
    },
)
routes = Routes(DIALECT.name, ERRORS)

MAX_ITEMS = 100
DEFAULT_ITEMS = 20
# Beyond the grace of a cancel: until the server has settled it.
SETTLING_SECONDS = 2.0
# What an item that came without an id is called by.
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
# A position that no part has.
LOST_PLACE = -2
# Said of a request that names a response which cannot be gone on from.
PREVIOUS_NOT_FOUND = "previous_response_not_found"


class CreateResponse(msgspec.Struct):
    """What else may stand here is told in docs/callers.md."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    background: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None


def _of_create(
    _own: Annotated[None, Depends(extensions)], _webhook: Annotated[None, Depends(webhook_parameters)]
) -> None:
    """Foreman's own, as headers."""


_ANSWERED = (AnswerHeader("X-Foreman-Job-Id", "The job behind this answer."),)


@routes.post(
    DIALECT.paths["chat"],
    Scope.JOBS_WRITE,
    "Ask for a response, as OpenAI does",
    Reply(
        "The response: whole, as it comes, or only queued",
        AnyDocument,
        _ANSWERED,
        streams_as=(DIALECT.stream_type,),
    ),
    request=Content(CreateResponse),
    parameters=_of_create,
    errors=(400, 404, 413, 429, 500, 503, 504),
    hot=True,
)
async def create_response(request: Request) -> Response:
    services = services_of(request)
    try:
        call, body = await read_call(request, services, "chat", DIALECT)
        asked = cast(ResponsesBody, body)
        job = call.job
        if not await is_known(services, asked.model):
            return surfaces.unknown_model(DIALECT, asked.model)
        if asked.previous_response_id is not None:
            previous = await _previous(services, asked.previous_response_id, job.tenant)
            job.payload = await off_loop(len(job.payload), _continued, job.payload, previous)
            most = services.settings.max_body_bytes
            if len(job.payload.encode()) > most:
                words = f"With all that was said before, this is more than {most} bytes."
                raise InvalidRequest(words, param="previous_response_id")
        if asked.metadata:
            job.metadata = encode(asked.metadata).decode()
        webhook_of(request, services.settings, in_background=asked.background is True).put_on(job)
        if asked.background:
            # Whoever asks for it does not wait, and hanging up is no reason to stop.
            job.interactive, job.backoff_seconds = False, None
            call = replace(call, cancels=False)
            if not call.streams:
                return await _accepted(services, call)
    except ForemanError as problem:
        return surfaces.refusal(DIALECT, problem)
    return Waiting(services, call, lambda: release_body(request))


async def _accepted(services: Services, call: Call) -> Response:
    submission = Submission([call.job], call.job.tenant, call.key, call.fingerprint)
    receipt = await admission.submit(services, call.account, submission)
    job_id = receipt.job_ids[0]
    headers = {"x-foreman-job-id": job_id}
    if receipt.replayed:
        headers["idempotency-replayed"] = "true"
        return json_response(_document(await _stored(services, job_id, call.job.tenant)), 200, headers)
    return json_response(encode(response(echoed(call.job.payload), job_id, "queued")), 200, headers)


async def _previous(services: Services, response_id: str, tenant: str) -> Job:
    try:
        job = await _stored(services, _job_id(response_id), tenant)
    except NotFound as problem:
        raise InvalidRequest(
            f"Previous response with id '{response_id[:100]}' not found.",
            param="previous_response_id",
            code=PREVIOUS_NOT_FOUND,
        ) from problem
    if job.state != "done":
        raise InvalidRequest(
            f"Previous response with id '{response_id}' has no output to go on from: it is {_status(job)}.",
            param="previous_response_id",
            code=PREVIOUS_NOT_FOUND,
        )
    return job


def _continued(payload: str, previous: Job) -> str:
    """With the whole conversation before its input: so that survives the deletion of earlier responses."""
    parts = verbatim.members(payload.encode())
    earlier = verbatim.members(previous.payload.encode())
    output = verbatim.members((previous.result or "{}").encode())
    items = [
        *_raw_items(earlier.get("input")),
        *_raw_items(output.get("output")),
        *_raw_items(parts.get("input")),
    ]
    parts["input"] = Raw(b"[" + b",".join([bytes(item) for item in items]) + b"]")
    return verbatim.assemble(parts, frozenset())


def _raw_items(given: Raw | None) -> list[Raw]:
    if given is None or bytes(given) == b"null":
        return []
    if bytes(given).startswith(b"["):
        return msgspec.json.decode(given, type=list[Raw])
    return [Raw(b'{"role":"user","content":' + bytes(given) + b"}")]


# -- one response ------------------------------------------------------------------------------------


def _job_id(response_id: str) -> str:
    job_id = response_id.removeprefix(RESPONSE_PREFIX)
    if not response_id.startswith(RESPONSE_PREFIX) or not is_id(job_id):
        raise _not_found(response_id)
    return job_id


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id[:100]}' not found.")


async def _id_in_path(response_id: Annotated[str, Path()]) -> str:
    return _job_id(response_id)


# A dependency, and so looked at before the body is read.
ResponseIdInPath = Annotated[str, Depends(_id_in_path)]


async def _stored(services: Services, job_id: str, tenant: str) -> Job:
    """Raises NotFound for a job that is no response, and for one that was not to be stored."""
    job = await read.get_job(services.database, job_id, tenant)
    if job is None or dialect_named(job.dialect) is not DIALECT or echoed(job.payload).store is False:
        raise _not_found(RESPONSE_PREFIX + job_id)
    return job


def _document(job: Job) -> bytes:
    if job.state == "done" and job.result is not None:
        return job.result.encode()
    asked = echoed(job.payload)
    if job.state in LIVE:
        return encode(response(asked, job.id, "queued" if job.state == "queued" else "in_progress"))
    return encode(failed_response(asked, job.id, _failure(job)))


def _failure(job: Job | Ended) -> Frame:
    return failure_of(job).frame(DIALECT)


def _status(job: Job) -> str:
    return as_text(orjson.loads(_document(job)).get("status"))


def _of_retrieve(
    response_id: Annotated[str, Path()],
    stream: Annotated[bool, Query(description="Its events, from the start and then live.")] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, description="Of a stream: only events behind the one of this number.")
    ] = None,
    include: Annotated[list[str] | None, Query(alias="include[]", description="As OpenAI has it.")] = None,
    include_obfuscation: Annotated[bool, Query(description="Nothing is obfuscated.")] = False,
) -> None:
    """Read by `retrieve_response`."""


@routes.get(
    "/v1/responses/{response_id}",
    Scope.JOBS_READ,
    "A response, or its events from any of them on",
    Reply("The response", AnyDocument, _ANSWERED, streams_as=(DIALECT.stream_type,)),
    errors=(400, 404, 503),
    parameters=_of_retrieve,
    stream=True,
)
async def retrieve_response(request: Request) -> ASGIApp:
    services, tenant = services_of(request), tenant_of(request)
    job_id = _job_id(request.path_params["response_id"])
    _check_query(request, {"stream", "starting_after", "include_obfuscation"})
    streams, after = _flag(request, "stream"), _number(request, "starting_after")
    _flag(request, "include_obfuscation")
    if after is not None and not streams:
        raise InvalidRequest("starting_after: means nothing without stream=true", param="starting_after")
    job = await _stored(services, job_id, tenant)
    if not streams:
        return json_response(_document(job), 200, {"x-foreman-job-id": job_id})
    # Only whoever has something already can have it from another run.
    earlier = await earlier_runs(services.hub, job_id, tenant) if after is not None else []
    events = ResponseEvents(DIALECT, job.payload, job_id, -1 if after is None else after)
    return ResponseStream(services, job, events, earlier)


def _check_query(request: Request, known: set[str]) -> None:
    for name in request.query_params:
        if name not in known | {"include", "include[]"}:
            raise InvalidRequest(
                f"Unknown parameter: '{name[:100]}'.", param=name[:100], code="unknown_parameter"
            )
    try:
        check_include([*request.query_params.getlist("include"), *request.query_params.getlist("include[]")])
    except RefusedRequest as refused:
        raise InvalidRequest(str(refused), param=refused.param, code=refused.code) from refused


def _flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false").lower()
    if given not in {"true", "false"}:
        raise InvalidRequest(f"{name}: must be true or false", param=name)
    return given == "true"


def _number(request: Request, name: str) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if not _NUMBER.fullmatch(given):
        raise InvalidRequest(f"{name}: must be a number from 0 on", param=name)
    return int(given)


class ResponseStream:
    """The events of a stored response, from its start and then live, and exactly one that tells the end.

    Whoever has events already may have them from a run that was broken off. What such runs said is compared
    with what the last one says: never is one answer continued with another.
    """

    def __init__(
        self, services: Services, job: Job, events: ResponseEvents, earlier: Sequence[Sequence[Any]]
    ) -> None:
        self._services = services
        self._job_id = job.id
        self._events = events
        self._writer = DIALECT.writer("chat", job.model or "", job.id, job.created_at)
        self._follower = Follower(services.database, services.hub, services.live, job.id, job.tenant)
        self._earlier = [run for run in earlier if run]
        self._at = job.created_at
        # How many parts were read.
        self._position = 0

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        is_stream(scope)
        headers = [(b"x-foreman-job-id", self._job_id.encode())]
        with self._services.streams.place("responses", scope):
            async with open_stream(
                receive, send, DIALECT.stream_type, self._follower.abandon, headers
            ) as answer:
                try:
                    await self._relay(answer)
                except NotFound:
                    await answer.say(self._error(404, GONE, "not_found"))
                except Unavailable as problem:
                    await answer.say(self._error(503, problem.detail, problem.code))

    async def _relay(self, answer: OpenStream) -> None:
        created = self._events.created()
        if created:
            await answer.say(created)
        quiet = self._services.streams.keep_alive_seconds
        async with contextlib.aclosing(self._follower.follow(quiet)) as following:
            async for told in following:
                said, is_over = self._told(told)
                if said:
                    await answer.say(said)
                if is_over or answer.gone:
                    return

    def _told(self, told: Sequence[Followed]) -> tuple[bytes, bool]:
        """What is to be sent, and whether it is the last."""
        said: list[bytes] = []
        for each in told:
            match each:
                case Output() if self._is_next(each):
                    if self._differs(each):
                        return b"".join(said) + self._error(500, RESTARTED, "restarted"), True
                    said.append(self._events.frame(self._writer.say(each.part, self._at)))
                case Output():
                    # Rows of the log are gone: the result tells the rest.
                    self._position = LOST_PLACE
                case Quiet():
                    said.append(self._events.silence({}))
                case Restarted():
                    return b"".join(said) + self._error(500, RESTARTED, "restarted"), True
                case Ended():
                    return b"".join(said) + self._ended(each), True
        return b"".join(said), False

    def _is_next(self, output: Output) -> bool:
        return output.position == self._position + 1 and not isinstance(output.part, str)

    def _differs(self, output: Output) -> bool:
        """From what the reader may have heard in its place."""
        index, self._position = self._position, output.position
        if not self._events.is_behind:
            return False
        return any(run[index] != output.part for run in self._earlier if index < len(run))

    def _ended(self, job: Ended) -> bytes:
        if job.state != "done":
            return self._events.error(_failure(job))
        [ending] = self._writer.ending(orjson.loads(job.result or "{}"), self._at)
        return self._events.frame(ending)

    def _error(self, status: int, message: str, code: str) -> bytes:
        return self._events.error(DIALECT.error(status, message, code=code))


# -- what can be done to it --------------------------------------------------------------------------


@routes.post(
    "/v1/responses/{response_id}/cancel",
    Scope.JOBS_WRITE,
    "Cancel a response in the background",
    Reply("The response, which is cancelled or had ended already", AnyDocument),
    errors=(400, 404, 503),
)
async def cancel_response(
    request: Request, server: Server, tenant: Tenant, response_id: ResponseIdInPath
) -> Response:
    job = await _stored(server, response_id, tenant)
    if echoed(job.payload).background is not True:
        raise InvalidRequest("Only a response in the background can be cancelled.", param="response_id")
    return json_response(_document(await _cancelled(request, server, job)))


async def _cancelled(request: Request, services: Services, job: Job) -> Job:
    """The job after its worker has stopped, which it is given some time for."""
    if job.state in TERMINAL:
        return job
    await cancel_job(services, job.id, job.tenant, None)
    seconds = services.settings.cancel_grace_seconds + SETTLING_SECONDS
    with long_poll(request.scope, seconds):
        ended = await wait_until_terminal(services, job.id, job.tenant, seconds)
    if ended is None:
        raise _not_found(RESPONSE_PREFIX + job.id)
    return ended


@routes.delete(
    "/v1/responses/{response_id}",
    Scope.JOBS_WRITE,
    "Delete a response; one that has not ended is cancelled first",
    Reply("Gone", AnyDocument),
    errors=(404, 409, 503),
)
async def delete_response(
    request: Request, server: Server, tenant: Tenant, response_id: ResponseIdInPath
) -> AnyDocument:
    job = await _cancelled(request, server, await _stored(server, response_id, tenant))
    changes = await control.delete(server.database, [job.id], tenant)
    if not changes.answers:
        job = await _stored(server, job.id, tenant)
        raise InvalidTransition(f"This response could not be stopped yet; it is {_status(job)}.")
    server.hub.announce(changes)
    return {"id": RESPONSE_PREFIX + job.id, "object": "response", "deleted": True}


# -- what it was made from ---------------------------------------------------------------------------


def _of_input_items(
    response_id: Annotated[str, Path()],
    after: Annotated[str | None, Query(description="The id of the last item that was seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Page size.")] = DEFAULT_ITEMS,
    order: Annotated[Literal["asc", "desc"], Query(description="By their place.")] = "desc",
    include: Annotated[list[str] | None, Query(alias="include[]", description="As OpenAI has it.")] = None,
) -> None:
    """Read by `input_items`."""


@routes.get(
    "/v1/responses/{response_id}/input_items",
    Scope.JOBS_READ,
    "What a response was made from",
    Reply("A page of items", AnyDocument),
    errors=(400, 404, 503),
    parameters=_of_input_items,
    stream=True,
)
async def input_items(request: Request) -> Response:
    job_id = _job_id(request.path_params["response_id"])
    _check_query(request, {"after", "limit", "order"})
    order, limit = request.query_params.get("order", "desc"), _number(request, "limit")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("order: must be asc or desc", param="order")
    if limit is not None and not 1 <= limit <= MAX_ITEMS:
        raise InvalidRequest(f"limit: must be a number from 1 to {MAX_ITEMS}", param="limit")
    job = await _stored(services_of(request), job_id, tenant_of(request))
    items = await off_loop(len(job.payload), _input_items, job)
    if order == "desc":
        items.reverse()
    after = request.query_params.get("after")
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequest(f"after: there is no item with the id '{after[:100]}'", param="after")
        items = items[places[0] + 1 :]
    page = items[: limit or DEFAULT_ITEMS]
    document = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
    return json_response(encode(document))


class _Given(msgspec.Struct):
    input: str | list[Frame] | None = None


def _input_items(job: Job) -> list[Frame]:
    """As OpenAI shows them: whole, and each under an id of its own."""
    shown: dict[str, Frame] = {}
    for index, item in enumerate(items_of(msgspec.json.decode(job.payload, type=_Given).input)):
        kind = as_text(item.get("type")) or "message"
        given = item.get("id")
        made = f"{_PREFIXES.get(kind, 'item')}_{job.id}_in{index}"
        item_id = given if isinstance(given, str) and given and given not in shown else made
        shown[item_id] = {"status": "completed", **item, "id": item_id, "type": kind}
        if kind == "message":
            shown[item_id]["content"] = _shown_content(item)
    return list(shown.values())


def _shown_content(item: Frame) -> list[Any]:
    content = item.get("content")
    if not isinstance(content, str):
        return as_list(content)
    if item.get("role") == "assistant":
        return [{"type": "output_text", "text": content, "annotations": []}]
    return [{"type": "input_text", "text": content}]
