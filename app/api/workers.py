"""The worker protocol: claim over HTTP, settle with the lease token; the in-process worker's functions."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
import orjson
from fastapi import Header, Path
from starlette.requests import Request
from starlette.responses import Response

from app.api import job_documents as documents
from app.api.direct import encode, json_response, read_as, read_body
from app.api.job_documents import (
    BriefClaimedJob,
    BriefClaimedJobs,
    ClaimedJob,
    ClaimedJobs,
    SettlementAnswer,
    SettlementAnswers,
)
from app.api.job_parameters import job_id_of, prefers_minimal
from app.api.open_streams import long_poll
from app.api.operator_documents import Worker, Workers
from app.api.parameters import Server, Tenant
from app.api.render import brief_documents, claimed_documents
from app.api.routes import AnswerHeader, AnyOf, Content, Reply, Routes
from app.api.services import Services, account_of, services_of
from app.api.worker_schemas import (
    BULK_VERBS,
    MAX_SETTLEMENTS,
    SHAPES,
    ClaimRequest,
    HeartbeatRequest,
    LogsRequest,
    ProgressRequest,
    SettlementBatch,
    SettlementHead,
    as_settlement,
    plain_completion,
    plain_completions,
)
from app.engine.remote_claims import AnyLane, Claimer, Jobs, Lanes
from app.errors import LeaseLost, NotFound
from app.identity.account import Account
from app.identity.scopes import Scope
from app.jobs import verbatim
from app.jobs.ids import is_id
from app.jobs.lanes import LLM_KINDS, kind_lane
from app.jobs.shapes import decode, parse_batch
from app.jobs.states import State
from app.jobs.submission import invalid
from app.loops.off_loop import off_loop
from app.store.claims import Claimant
from app.store.events import NewEvent
from app.store.job import BriefJob, LeasedJob
from app.store.settle import Settled, Settlement, note_late
from app.store.workers import WorkerReport, list_workers

routes = Routes("workers")

# A worker that was not seen for so long may have gone.
ALIVE_SECONDS = 120


MINIMAL = {"Preference-Applied": "return=minimal"}


def _of_claim(
    prefer: Annotated[
        str | None,
        Header(
            alias="Prefer",
            description="`return=minimal`: of each job only what it takes to run it, nothing that is null.",
        ),
    ] = None,
) -> None:
    """Read by prefers_minimal."""


@routes.post(
    "/claims",
    Scope.JOBS_WORK,
    "Claim jobs under a lease",
    Reply(
        "The claimed jobs, each with its lease_token; an empty list when the wait is over",
        AnyOf((ClaimedJobs, BriefClaimedJobs)),
        (AnswerHeader("Preference-Applied"),),
    ),
    parameters=_of_claim,
    request=Content(ClaimRequest),
    hot=True,
)
async def claim(request: Request) -> Response:
    services = services_of(request)
    wanted: ClaimRequest = await read_as(request, decode, ClaimRequest, services.settings.max_json_depth)
    account = account_of(request)
    services.worker_directory.saw(
        WorkerReport(
            account.tenant,
            wanted.worker,
            wanted.queues,
            wanted.kinds or [],
            wanted.concurrency or wanted.limit,
            wanted.version,
        )
    )
    claimer = Claimer(
        list(dict.fromkeys(wanted.queues)),
        _lanes(wanted, account.tenant),
        Claimant(wanted.worker, wanted.limit, wanted.lease_seconds or 0),
        prefers_minimal(request),
    )
    with long_poll(request.scope, wanted.wait_seconds):
        claimed = await _claim_unless_gone(request, services, claimer, wanted.wait_seconds)
    if claimer.brief:
        briefly = brief_documents(cast("Sequence[BriefJob]", claimed))
        _bind_leases(account, briefly)
        return json_response(encode(BriefClaimedJobs(briefly)), headers=MINIMAL)
    wholly = claimed_documents(cast("Sequence[LeasedJob]", claimed))
    _bind_leases(account, wholly)
    return json_response(encode(ClaimedJobs(wholly)))


def _bind_leases(account: Account, claimed: Sequence[ClaimedJob] | Sequence[BriefClaimedJob]) -> None:
    """To the key that claimed: no other one can settle with what is handed out here."""
    if account.binds_leases:
        for job in claimed:
            job.lease_token = account.lease_token(job.job_id, job.lease_token)


def _lanes(wanted: ClaimRequest, tenant: str) -> Lanes:
    kinds = wanted.kinds
    if kinds is None:
        return AnyLane(tenant)
    own = sorted(LLM_KINDS.intersection(kinds))
    if own:
        raise invalid("kinds", f"{', '.join(own)} jobs are run by Foreman itself, on its targets")
    return tuple(kind_lane(kind, tenant) for kind in dict.fromkeys(kinds))


async def _claim_unless_gone(
    request: Request, services: Services, claimer: Claimer, wait_seconds: float
) -> Jobs:
    """Jobs for a claimer that hung up before its answer was ready go back to the queue at once."""
    watch = asyncio.create_task(_watch(request, claimer)) if wait_seconds > 0 else None
    claimed: Jobs = []
    answers = False
    try:
        claimed = await services.remote_claims.claim(claimer, wait_seconds)
        answers = not claimed or not await request.is_disconnected()
    finally:
        if watch is not None:
            watch.cancel()
        if not answers:
            services.remote_claims.give_back(claimed)
    return claimed if answers else []


async def _watch(request: Request, claimer: Claimer) -> None:
    """After its body a request says one thing only: that its client is gone."""
    await request.receive()
    claimer.leave()


def _of_settling(job_id: Annotated[str, Path()]) -> None:
    """Read by job_id_of."""


def _settling_route(verb: str, summary: str, answer: type[msgspec.Struct]) -> None:
    shape = SHAPES[verb]

    async def settle_one(request: Request) -> Response:
        services = services_of(request)
        job_id = job_id_of(request)
        body = await read_body(request)
        wanted = await off_loop(len(body), decode, body, shape, services.settings.max_json_depth)
        account = account_of(request)
        return json_response(encode(await _settle_one(services, account, job_id, verb, wanted, body)))

    settle_one.__name__ = verb
    declare = routes.post(
        f"/jobs/{{job_id}}/{verb}",
        Scope.JOBS_WORK,
        summary,
        Reply("Done", answer),
        parameters=_of_settling,
        request=Content(shape),
        errors=(404, 409),
        hot=True,
    )
    declare(settle_one)


_settling_route("start", "loading → working", documents.Settled)
_settling_route("heartbeat", "Renew the lease", documents.Lease)
_settling_route("progress", "Report progress", documents.Noted)
_settling_route("logs", "Write log entries", documents.Noted)
_settling_route("complete", "loading, working → done", documents.Settled)
_settling_route(
    "fail",
    "loading, working → failed, or queued again when retryable and attempts are left",
    documents.Settled,
)
_settling_route("release", "loading, working → queued; no attempt spent", documents.Settled)
_settling_route("defer", "loading, working → queued later; no attempt spent", documents.Settled)


async def _settle_one(
    services: Services, account: Account, job_id: str, verb: str, wanted: Any, body: bytes
) -> msgspec.Struct:
    match wanted:
        case HeartbeatRequest():
            token = account.lease_token(job_id, wanted.lease_token)
            leases = await services.leases.renew([(job_id, token, wanted.lease_seconds)])
            lease = leases.get(job_id)
            if lease is None:
                raise await _lost(services, account, job_id, verb)
            return documents.Lease(
                lease_expires_at=lease.expires_at,
                cancel_requested=lease.cancel_requested,
                deadline=lease.deadline,
            )
        case ProgressRequest() | LogsRequest():
            appended = await asyncio.gather(
                *(services.event_writer.append(event) for event in _events(account, job_id, wanted))
            )
            if appended[0] is None:
                raise await _lost(services, account, job_id, verb)
            return documents.Noted(job_id=job_id, seq=appended[-1].seq if appended[-1] else appended[0].seq)
        case _:
            settlement = await off_loop(len(body), as_settlement, job_id, wanted, body)
            settled = await services.settler.settle(_bound(account, settlement))
            if settled.state is None:
                raise NotFound("There is no such job.")
            if not settled.ok:
                raise LeaseLost()
            return documents.Settled(job_id=job_id, state=State(settled.state))


def _bound(account: Account, settlement: Settlement) -> Settlement:
    """As the store has it: with the token that only this key could say so, and only of its tenant's jobs."""
    settlement.tenant = account.tenant
    if account.binds_leases:
        settlement.lease_token = account.lease_token(settlement.job_id, settlement.lease_token)
    return settlement


async def _lost(services: Services, account: Account, job_id: str, verb: str) -> Exception:
    """Tell what is the matter, and leave the late one's mark in the log."""
    noted = await note_late(services.database, [(job_id, verb)], account.tenant)
    services.hub.announce(noted)
    return LeaseLost() if noted.answers else NotFound("There is no such job.")


def _events(account: Account, job_id: str, wanted: ProgressRequest | LogsRequest) -> list[NewEvent]:
    token = account.lease_token(job_id, wanted.lease_token)
    if isinstance(wanted, ProgressRequest):
        document = orjson.dumps(wanted.document()).decode()
        return [NewEvent(job_id, "progress", document, token, document)]
    return [
        NewEvent(job_id, "log", orjson.dumps(msgspec.to_builtins(entry)).decode(), token)
        for entry in wanted.entries
    ]


@routes.post(
    "/settlements",
    Scope.JOBS_WORK,
    f"Settle up to {MAX_SETTLEMENTS} jobs in one commit, each answered on its own",
    Reply("Answers in order", SettlementAnswers),
    request=Content(SettlementBatch),
    hot=True,
)
async def settlements(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request)
    entries = await off_loop(len(body), _parse_settlements, body, services.settings.max_json_depth)
    account = account_of(request)
    waves = _waves(entries)
    if len(waves) == 1:
        return json_response(encode(SettlementAnswers(await _settle_wave(services, account, entries))))
    answers: dict[int, SettlementAnswer] = {}
    for wave in waves:
        answers |= zip(wave, await _settle_wave(services, account, [entries[n] for n in wave]), strict=True)
    return json_response(encode(SettlementAnswers([answers[n] for n in range(len(entries))])))


class _Entry(msgspec.Struct):
    """One of many: what is wanted of the job, and if it settles it, the settlement."""

    job_id: str
    verb: str
    wanted: HeartbeatRequest | ProgressRequest | None
    settlement: Settlement | None = None


def _parse_settlements(body: bytes, max_depth: int) -> list[_Entry]:
    def parse(entry: bytes) -> _Entry:
        return _parse_entry(entry, max_depth)

    return parse_batch(
        body,
        "settlements",
        parse,
        most=MAX_SETTLEMENTS,
        max_depth=max_depth,
        parse_all=_parse_completions,
    )


def _parse_completions(array: msgspec.Raw) -> list[_Entry] | None:
    completions = plain_completions(bytes(array))
    if completions is None:
        return None
    return [_Entry(each.job_id, "complete", None, each) for each in completions]


def _parse_entry(text: bytes, max_depth: int) -> _Entry:
    completion = plain_completion(text, max_depth)
    if completion is not None:
        return _Entry(completion.job_id, "complete", None, completion)
    parts = verbatim.members(text, max_depth)
    try:
        head = msgspec.json.decode(text, type=SettlementHead)
    except msgspec.ValidationError as problem:
        missing = [name for name in ("job_id", "verb") if name not in parts]
        raise invalid(missing[0] if missing else "job_id", "is required, as a string") from problem
    if head.verb not in BULK_VERBS:
        raise invalid("verb", f"must be one of {', '.join(BULK_VERBS)}")
    # Without its address the entry is the very body that the single route takes; fingerprints are equal too.
    body = verbatim.assemble(parts, frozenset({"job_id", "verb"})).encode()
    wanted = decode(body, SHAPES[head.verb], max_depth)
    if isinstance(wanted, HeartbeatRequest | ProgressRequest):
        return _Entry(head.job_id, head.verb, wanted)
    return _Entry(head.job_id, head.verb, None, as_settlement(head.job_id, wanted, body))


def _waves(entries: Sequence[_Entry]) -> list[list[int]]:
    """Indexes in order, split so that no job is in one wave twice."""
    if len({entry.job_id for entry in entries}) == len(entries):
        return [list(range(len(entries)))]
    waves: list[list[int]] = []
    depth: dict[str, int] = {}
    for index, entry in enumerate(entries):
        wave = depth.get(entry.job_id, 0)
        depth[entry.job_id] = wave + 1
        if wave == len(waves):
            waves.append([])
        waves[wave].append(index)
    return waves


async def _settle_wave(
    services: Services, account: Account, entries: Sequence[_Entry]
) -> list[SettlementAnswer]:
    """At most one entry per job: all that settle in one statement, renewals and progress each in one more."""
    answers: dict[str, SettlementAnswer] = {}
    settling = [_bound(account, each.settlement) for each in entries if each.settlement is not None]
    late: list[_Entry] = []
    if settling:
        settled = [_settled_answer(each) for each in await services.settler.settle_many(settling)]
        if len(settling) == len(entries):
            return settled
        answers = {each.job_id: each for each in settled}
    beats = [(each, each.wanted) for each in entries if isinstance(each.wanted, HeartbeatRequest)]
    notes = [(each, each.wanted) for each in entries if isinstance(each.wanted, ProgressRequest)]
    if beats:
        leases = await services.leases.renew(
            [
                (each.job_id, account.lease_token(each.job_id, wanted.lease_token), wanted.lease_seconds)
                for each, wanted in beats
            ]
        )
        for each, _ in beats:
            lease = leases.get(each.job_id)
            if lease is None:
                late.append(each)
            else:
                answers[each.job_id] = SettlementAnswer(
                    job_id=each.job_id,
                    ok=True,
                    lease_expires_at=lease.expires_at,
                    cancel_requested=lease.cancel_requested,
                    deadline=lease.deadline,
                )
    if notes:
        appended = await asyncio.gather(
            *(
                services.event_writer.append(_events(account, each.job_id, wanted)[0])
                for each, wanted in notes
            )
        )
        for (each, _), done in zip(notes, appended, strict=True):
            if done is None:
                late.append(each)
            else:
                answers[each.job_id] = SettlementAnswer(job_id=each.job_id, ok=True, seq=done.seq)
    if late:
        known = [(each.job_id, each.verb) for each in late if is_id(each.job_id)]
        services.hub.announce(await note_late(services.database, known, account.tenant))
        answers |= {
            each.job_id: SettlementAnswer(job_id=each.job_id, ok=False, code=LeaseLost.code) for each in late
        }
    return [answers[each.job_id] for each in entries]


def _settled_answer(settled: Settled) -> SettlementAnswer:
    if settled.ok and settled.state is not None:
        # A row has no state but these; to look it up would cost more than it tells.
        return SettlementAnswer(job_id=settled.job_id, ok=True, state=cast(State, settled.state))
    code = NotFound.code if settled.state is None else LeaseLost.code
    return SettlementAnswer(job_id=settled.job_id, ok=False, code=code)


@routes.get("/workers", Scope.ADMIN_READ, "Who is about", "Workers, last seen first")
async def workers(server: Server, tenant: Tenant) -> Workers:
    now = time.time()
    found = await list_workers(server.database, tenant)
    return Workers(
        [
            Worker(**msgspec.structs.asdict(each), alive=now - each.last_seen_at.timestamp() < ALIVE_SECONDS)
            for each in found
        ]
    )
