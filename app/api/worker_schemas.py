"""What workers send: one struct per verb, decoded once and mapped to one store verb."""

import hashlib
import random
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app.dialects.usage import MAX_SECONDS, MAX_TOKENS
from app.engine.settler import as_settlement as outcome_settlement
from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.explain import explain
from app.jobs.outcomes import Deferred, Failed, JobError, Outcome, Released, Retry, Succeeded
from app.jobs.retry import defer_delay
from app.jobs.states import Verb
from app.jobs.submission import NO_NUL, Name, Seconds, invalid
from app.store.settle import Settlement

# PostgreSQL keeps no NUL characters, neither in text nor in JSON.
Text = Annotated[str, Meta(max_length=10_000, pattern=NO_NUL)]
Token = Annotated[str, Meta(min_length=1, max_length=200, pattern=NO_NUL)]
Reason = Annotated[str, Meta(max_length=500, pattern=NO_NUL)]


class ClaimRequest(msgspec.Struct, forbid_unknown_fields=True):
    worker: Annotated[str, Meta(min_length=1, max_length=200, pattern=NO_NUL)]
    queues: Annotated[
        list[Name], Meta(min_length=1, max_length=100, extra_json_schema={"default": ["default"]})
    ] = msgspec.field(default_factory=lambda: ["default"])
    kinds: Annotated[list[Name], Meta(min_length=1, max_length=100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
    lease_seconds: Annotated[float, Meta(ge=0.05, le=86_400)] | None = None
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    version: Annotated[str, Meta(max_length=200, pattern=NO_NUL)] | None = None


class _Settling(msgspec.Struct, forbid_unknown_fields=True):
    lease_token: Token


class StartRequest(_Settling):
    pass


class HeartbeatRequest(_Settling):
    lease_seconds: Annotated[float, Meta(ge=0.05, le=86_400)] | None = None


# As much as no job can use, so that sums of them stay numbers (see app/store/usage.py).
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
UsedSeconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]


class ReportedUsage(msgspec.Struct):
    """What is summed up at GET /usage. Whatever else a worker writes beside it is kept as it is."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    load_seconds: UsedSeconds | None = None
    prefill_seconds: UsedSeconds | None = None
    decode_seconds: UsedSeconds | None = None


_FIGURES = set(ReportedUsage.__struct_fields__)
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_decode_usage = msgspec.json.Decoder(ReportedUsage | None).decode


def _null() -> msgspec.Raw:
    # Not as a plain default: msgspec cannot describe one that is raw.
    return msgspec.Raw(b"null")


class CompleteRequest(_Settling):
    result: Annotated[msgspec.Raw, Meta(description="Any JSON, kept verbatim.")] = msgspec.field(
        default_factory=_null
    )
    usage: Annotated[
        msgspec.Raw,
        Meta(
            extra_json_schema={
                "anyOf": [{"$ref": "#/components/schemas/ReportedUsage"}, {"type": "null"}],
            }
        ),
    ] = msgspec.field(default_factory=_null)

    def check(self) -> None:
        try:
            _decode_usage(self.usage)
        except msgspec.ValidationError as problem:
            raise _explain_usage(bytes(self.usage)) from problem

    @property
    def usage_text(self) -> str | None:
        """As it came, with the figures in one plain spelling."""
        used = _decode_usage(self.usage)
        if used is None:
            return None
        parts = verbatim.members(bytes(self.usage))
        parts |= {
            name: msgspec.Raw(msgspec.json.encode(getattr(used, name))) for name in _FIGURES & parts.keys()
        }
        return verbatim.assemble(parts, frozenset()) if parts else None


class ErrorBody(msgspec.Struct, forbid_unknown_fields=True):
    code: Annotated[str, Meta(min_length=1, max_length=200, pattern=NO_NUL)] = "failed"
    message: Text = ""


class FailRequest(_Settling):
    error: ErrorBody = msgspec.field(default_factory=ErrorBody)
    retryable: bool = False
    retry_in_seconds: Seconds | None = None


class ReleaseRequest(_Settling):
    delay_seconds: Seconds | None = None
    reason: Reason | None = None


class DeferRequest(ReleaseRequest):
    pass


class ProgressRequest(_Settling):
    step: Annotated[str, Meta(max_length=500, pattern=NO_NUL)] | None = None
    message: Text | None = None
    current: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    total: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    fraction: Annotated[float, Meta(ge=0, le=1)] | None = None

    def document(self) -> dict[str, Any]:
        fraction = self.fraction
        if fraction is None and self.current is not None and self.total:
            fraction = min(1.0, self.current / self.total)
        whole = {"current": _plain(self.current), "total": _plain(self.total)}
        return {"step": self.step, "message": self.message, **whole, "fraction": fraction}


class LogEntry(msgspec.Struct, forbid_unknown_fields=True):
    message: Text
    level: Literal["info", "warn", "error"] = "info"
    at: Annotated[str, Meta(max_length=64, pattern=NO_NUL)] | None = None


class LogsRequest(_Settling):
    entries: Annotated[list[LogEntry], Meta(min_length=1, max_length=1000)]


SHAPES: dict[str, type[_Settling]] = {
    "start": StartRequest,
    "heartbeat": HeartbeatRequest,
    "progress": ProgressRequest,
    "logs": LogsRequest,
    "complete": CompleteRequest,
    "fail": FailRequest,
    "release": ReleaseRequest,
    "defer": DeferRequest,
}
_VERBS = {shape: verb for verb, shape in SHAPES.items()}
BULK_VERBS = sorted(SHAPES.keys() - {"logs"})
MAX_SETTLEMENTS = 1000


class SettlementHead(msgspec.Struct):
    """Which job is meant, and what with it."""

    job_id: Token
    # Described, but checked by hand: in words that name the verbs.
    verb: Annotated[str, Meta(extra_json_schema={"enum": BULK_VERBS})]


class SettlementEntry(SettlementHead):
    """And beside them what the body of the verb's own route has."""

    lease_token: Token


class SettlementBatch(msgspec.Struct, forbid_unknown_fields=True):
    settlements: Annotated[list[SettlementEntry], Meta(min_length=1, max_length=MAX_SETTLEMENTS)]


def _explain_usage(usage: bytes) -> InvalidRequest:
    if not usage.startswith(b"{"):
        return invalid("usage", "must be an object")
    errors = explain(verbatim.members(usage), ReportedUsage).extra["errors"]
    named = [{**each, "field": f"usage.{each['field']}"} for each in errors]
    return InvalidRequest("; ".join(f"{each['field']}: {each['message']}" for each in named), errors=named)


def fingerprint(verb: str, body: bytes) -> str:
    return hashlib.sha256(verb.encode() + b"\0" + body).hexdigest()


# A completion in a batch as our own client writes it, which is nearly all that comes. Whatever is written in
# any other way, and whatever has more to it, is read member by member.
_COMPLETION = re.compile(
    rb'\{"job_id":"([0-9A-Za-z]{1,64})","lease_token":"([0-9A-Za-z]{1,64})","verb":"complete",'
    rb'"result":(\S(?:.*\S)?)\}',
    re.DOTALL,
)


def plain_completion(entry: bytes, max_depth: int) -> Settlement | None:
    """The settlement that such an entry stands for; None for all others. Its batch was checked as a text."""
    found = _COMPLETION.fullmatch(entry)
    if found is None or entry.count(b"[") + entry.count(b"{") > max_depth:
        return None
    job_id, token, result = found.groups()
    try:
        # That it is one value and not the beginning of more members.
        _decode_any(result)
    except (msgspec.MsgspecError, RecursionError):
        return None
    body = b'{"lease_token":"%b","result":%b}' % (token, result)
    return Settlement(
        job_id.decode(),
        token.decode(),
        Verb.COMPLETE,
        result=result.decode(),
        fingerprint=fingerprint("complete", body),
    )


class _Completion(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    job_id: Annotated[str, Meta(min_length=1, max_length=64)]
    lease_token: Annotated[str, Meta(min_length=1, max_length=64)]
    verb: Literal["complete"]
    result: msgspec.Raw


_decode_completions = msgspec.json.Decoder(list[_Completion]).decode


def plain_completions(entries: bytes) -> list[Settlement] | None:
    """The same for all the entries of a batch, if all of them are such. Its batch was checked as a text."""
    try:
        found = [
            (each.job_id, each.lease_token, bytes(each.result).decode())
            for each in _decode_completions(entries)
        ]
    except (msgspec.MsgspecError, RecursionError):
        return None
    plain = "".join([job_id + token for job_id, token, _ in found])
    # Written again and compared: then nothing in it was spelt otherwise, said twice or in another order.
    written = ",".join(
        [
            f'{{"job_id":"{job_id}","lease_token":"{token}","verb":"complete","result":{result}}}'
            for job_id, token, result in found
        ]
    )
    if not (plain.isascii() and plain.isalnum()) or f"[{written}]".encode() != entries:
        return None
    return [
        Settlement(
            job_id,
            token,
            Verb.COMPLETE,
            result=result,
            fingerprint=fingerprint("complete", f'{{"lease_token":"{token}","result":{result}}}'.encode()),
        )
        for job_id, token, result in found
    ]


def as_settlement(job_id: str, request: _Settling, body: bytes) -> Settlement:
    """Each request that settles is exactly one verb of the store."""
    if isinstance(request, StartRequest):
        return Settlement(job_id, request.lease_token, Verb.START)
    settlement = outcome_settlement(job_id, request.lease_token, _outcome(request))
    settlement.fingerprint = fingerprint(_VERBS[type(request)], body)
    return settlement


def _outcome(request: _Settling) -> Outcome:
    match request:
        case CompleteRequest():
            return Succeeded(bytes(request.result).decode(), request.usage_text)
        case FailRequest(error=said, retryable=retryable):
            error = JobError(said.code, said.message, retryable)
            return Retry(error, request.retry_in_seconds) if retryable else Failed(error)
        case DeferRequest(delay_seconds=delay):
            return Deferred(defer_delay(0, random.random()) if delay is None else delay, request.reason)
        case ReleaseRequest():
            return Released(request.reason, request.delay_seconds)
    raise TypeError(f"{type(request).__name__} settles nothing")


def _plain(number: float | None) -> float | int | None:
    return int(number) if number is not None and number.is_integer() else number
