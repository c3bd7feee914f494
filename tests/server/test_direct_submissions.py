"""What goes the short way and what does not, request by request, without a socket or a database.

tests/api/test_direct_submissions.py compares the two ways on the wire.
"""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from structlog.testing import capture_logs

from app.api.edge import Edge
from app.config import Settings
from app.engine.intake import Intake
from app.errors import Unavailable
from app.identity.account import Account
from app.identity.limits import UNLIMITED, Limits
from app.identity.scopes import ALL_SCOPES, Scope
from app.jobs.queue_settings import QueueRules, QueueSettings
from app.loops.batcher import Tell
from app.main import create_app
from app.server.direct_submissions import HARMLESS, REQUEST_LINE, DirectSubmissions
from app.store.idempotency import Answer, Receipt, Submission
from tests.patience import turn_of_the_loop, until

BODY = b'{"kind":"noop","queue":"q","payload":{"a": 1.0}}'
HOST = b"host: localhost"
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def request(*headers: bytes, body: bytes = BODY, line: bytes = b"POST /jobs HTTP/1.1") -> bytes:
    return b"\r\n".join([line, *(headers or (HOST,)), b"content-length: %d" % len(body), b"", body])


@dataclass(eq=False)
class Client:
    answers: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    account: Account | None = None
    last_head: bytes = b""
    last_headers: dict[bytes, bytes] | None = None
    waits: int = 0

    def belong_to(self, account: Account) -> None:
        account.comes_by(self)
        self.account = account

    def key_ended(self) -> None:
        self.account = None

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        self.answers.append((status, headers, body))


class Way:
    """The short way, up to the batcher."""

    def __init__(self) -> None:
        self.edge: Edge = create_app(Settings(database_url="postgresql://nowhere/none", auth="off"))
        self.intake: Intake = self.edge.app.state.foreman.intake
        self.taken: list[tuple[Submission, Tell[Receipt]]] = []
        # What would be flushed is kept.
        self.intake._plain.add = lambda item, tell: self.taken.append((item, tell))
        self.client = Client()
        self.direct = DirectSubmissions(self.edge, self.intake, 64)

    def takes(self, data: bytes) -> bool:
        before = len(self.taken)
        took = self.direct.take(data, self.client)
        assert len(self.taken) - before == took
        return took

    def tell(self, outcome: Receipt | Exception) -> tuple[int, bytes, bytes]:
        self.taken[-1][1](outcome)
        return self.client.answers[-1]


@pytest.fixture(scope="module")
def shared() -> Way:
    return Way()


@pytest.fixture
def way(shared: Way) -> Way:
    shared.taken.clear()
    shared.client.answers.clear()
    return shared


def test_a_small_ordinary_submission_is_taken_as_it_is(way: Way) -> None:
    headers = (
        HOST,
        b"X-Request-Id: r-1",
        b"TraceParent: " + TRACE,
        b"tracestate: a=1",
        b'idempotency-key: "k"',
    )
    assert way.takes(request(*headers))
    [(submission, _)] = way.taken
    [job] = submission.jobs
    assert (job.kind, job.queue, job.payload, job.tenant) == ("noop", "q", '{"a": 1.0}', "default")
    assert (job.request_id, job.traceparent, job.tracestate) == ("r-1", TRACE.decode(), "a=1")
    assert (submission.idempotency_key, submission.batch) == ("k", False)
    assert submission.fingerprint is not None
    assert not way.client.answers


@pytest.mark.parametrize("name", sorted(HARMLESS - {b"host", b"content-length", b"connection"}))
def test_a_harmless_header_changes_nothing(way: Way, name: bytes) -> None:
    assert way.takes(request(HOST, name + b": x"))
    assert way.takes(request(HOST, name.title() + b": x"))
    assert not way.takes(request(HOST, name + b": x", name + b": x"))


@pytest.mark.parametrize(
    "header",
    [
        b"prefer: wait=1",
        b"expect: 100-continue",
        b"origin: http://localhost",
        b"sec-fetch-site: cross-site",
        b"transfer-encoding: chunked",
        b"content-encoding: gzip",
        b"upgrade: h2c",
        b"connection: close",
        b"connection: keep-alive, upgrade",
        b"x-unheard-of: 1",
        b"x-foreman-priority: 1",
        b"accept:x",
        b"accept : x",
        b"accept:  x",
        b"accept: x ",
        b"accept: ",
        b"accept:",
        b"accept",
        b" accept: x",
        b"accept: x\r\n y",
        b"accept: x\ty",
        b"accept: x\x00",
        b"accept: x\ry",
        b"accept: x\ny: z",
        b"accept: \xe9",
        b"user-agent: \x7f",
        b"content-length: 1",
        b"host: localhost",
        b"idempotency-key: \xe9",
        b'idempotency-key: ""',
        b"idempotency-key: " + b"k" * 300,
        b"accept: " + b"x" * 9000,
        b"",
    ],
)
def test_whatever_else_is_said_goes_the_ordinary_way(way: Way, header: bytes) -> None:
    assert not way.takes(request(HOST, header))
    assert not way.takes(request(header, HOST))


@pytest.mark.parametrize(
    "host", [b"host: evil.example", b"host: localhost:x", b"host: localhost, localhost", b"accept: x"]
)
def test_who_may_not_come_in_is_not_let_in_here(way: Way, host: bytes) -> None:
    assert not way.takes(request(host))


def test_who_may_come_in_is_asked_of_the_edge_before_the_body_is_looked_at(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def nobody(scope: object, seen: object, now: float) -> None:
        asked.append(seen)
        raise Unavailable

    monkeypatch.setattr(way.edge, "admit", nobody)
    monkeypatch.setattr("app.server.direct_submissions.parse_job", None)
    assert not way.takes(request(HOST, b"authorization: Bearer x"))
    assert len(asked) == 1


async def test_as_whom_it_was_let_in_is_whose_job_it_is(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = Account("k", "somebody", ALL_SCOPES, Limits(requests_per_second=2))
    monkeypatch.setattr(way.edge, "admit", lambda *_: somebody)
    assert way.takes(request())
    assert way.client in somebody.connections
    _, headers, _ = way.tell(Receipt(["01ARZ3NDEKTSV4RRFFQ69G5FAV"]))
    assert b'ratelimit-policy: "requests";q=2;w=1\r\nratelimit: "requests";r=1;t=1\r\n' in headers
    [(submission, _)] = way.taken
    assert (submission.tenant, submission.jobs[0].tenant) == ("somebody", "somebody")


@pytest.mark.parametrize(
    "account",
    [
        None,
        Account("k", "t", set(ALL_SCOPES) - {Scope.JOBS_WRITE}, UNLIMITED),
        Account("k", "t", ALL_SCOPES, Limits(jobs=1)),
    ],
    ids=["to be looked up", "without the scope", "with a limit to its jobs"],
)
def test_who_has_to_be_looked_at_more_closely_goes_the_ordinary_way(
    way: Way, monkeypatch: pytest.MonkeyPatch, account: Account | None
) -> None:
    monkeypatch.setattr(way.edge, "admit", lambda *_: account)
    assert not way.takes(request())


def test_what_goes_the_ordinary_way_after_all_is_counted_there_only(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody = Account("k", "t", ALL_SCOPES, Limits(requests_per_second=1))
    monkeypatch.setattr(way.edge, "admit", lambda *_: somebody)
    webhook = b'{"kind":"noop","state_webhook_url":"https://example.com"}'
    for _ in range(5):
        assert not way.takes(request(body=webhook))
    assert way.takes(request())


async def test_who_asks_too_often_is_refused_from_here_and_not_at_once(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.edge.REFUSED_SECONDS", 0)
    somebody = Account("k", "t", ALL_SCOPES, Limits(requests_per_second=1))
    monkeypatch.setattr(way.edge, "admit", lambda *_: somebody)
    assert way.takes(request())
    assert way.direct.take(request(), way.client)
    assert len(way.taken) == 1
    assert not way.client.answers, "told later, as all answers are"
    await until(lambda: way.client.answers)
    [(status, headers, body)] = way.client.answers
    assert (status, b"retry-after: 1\r\n" in headers, b"rate_limited" in body) == (429, True, True)
    assert b'ratelimit: "requests";r=0;t=1\r\n' in headers


def test_the_same_words_are_read_once_and_others_anew(way: Way) -> None:
    for headers in ((HOST,), (HOST,), (HOST, b"x-unheard-of: 1"), (HOST, b"x-unheard-of: 1"), (HOST,)):
        assert way.takes(request(*headers)) == (len(headers) == 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"kind":"noop","payload":{"a":NaN}}',
        b'{"kind":"noop","payload":{"a":"\\ud800"}}',
        b'{"kind":"noop","payload":{"a":"\xff"}}',
        b'{"kind":"noop","payload":' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"kind":"noop","unknown":1}',
        b'{"kind":"noop","priority":1000}',
        b'{"kind":"noop","state_webhook_url":"https://example.com"}',
        b'{"kind":"http","payload":{"method":"GET","url":"https://example.com"}}',
        b'{"kind":"noop","parent_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}',
        b'{"kind":"noop","depends_on":["01ARZ3NDEKTSV4RRFFQ69G5FAV"]}',
        b'{"kind":"noop","payload":{"a":"' + b"x" * 70_000 + b'"}}',
    ],
)
def test_a_body_that_is_wrong_or_needs_asking_goes_the_ordinary_way(way: Way, body: bytes) -> None:
    assert not way.takes(request(body=body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[]}',
        b'{"kind":"noop"}',
        b' {"kind":"noop","metadata":{"a":"b"},"delay_seconds":5} ',
        '{"kind":"own","payload":{"ä":"\u2028"}}'.encode(),
    ],
)
def test_any_job_that_only_has_to_be_kept_is_taken(way: Way, body: bytes) -> None:
    assert way.takes(request(body=body))


@pytest.mark.parametrize(
    "line",
    [
        b"POST /jobs HTTP/1.0",
        b"PUT /jobs HTTP/1.1",
        b"POST /jobs/ HTTP/1.1",
        b"POST /jobs?x=1 HTTP/1.1",
        b"POST  /jobs HTTP/1.1",
        b"POST /jobs/batch HTTP/1.1",
    ],
)
def test_another_request_line_is_not_even_looked_at(line: bytes) -> None:
    """It is the protocol that looks at it."""
    assert not request(line=line).startswith(REQUEST_LINE)


def test_less_or_more_than_one_request_goes_the_ordinary_way(way: Way) -> None:
    whole = request()
    assert not any(way.takes(whole[:end]) for end in range(len(whole)))
    assert not way.takes(whole + b"\r\n")
    assert not way.takes(whole + whole)
    assert way.takes(whole)


def test_a_queue_with_rules_goes_the_ordinary_way(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = QueueRules("q", QueueSettings(), paused=True)
    monkeypatch.setattr(way.intake._book, "_rules", {"q": rules})
    assert not way.takes(request())


def test_a_server_that_is_not_ready_says_so_by_the_ordinary_way(way: Way) -> None:
    way.edge.not_yet = Unavailable("The server is starting.", retry_after=1)
    try:
        assert not way.takes(request())
    finally:
        way.edge.not_yet = None


def test_a_body_beyond_a_smaller_limit_goes_the_ordinary_way(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way.edge, "unwatched", len(BODY) - 1)
    assert not way.takes(request())
    monkeypatch.setattr(way.edge, "unwatched", len(BODY))
    assert way.takes(request())


async def test_each_answer_says_what_became_of_its_job(way: Way) -> None:
    assert way.takes(request(HOST, b"x-request-id: r"))
    receipts: list[tuple[Receipt | Exception, int, bytes]] = [
        (Receipt(["ID"]), 202, b'"job_id":"ID"'),
        (Receipt(["ID"], replayed=True, answers=[Answer("ID")]), 202, b'"job_id":"ID"'),
        (Receipt(["ID"], answers=[Answer("ID", outcome="coalesced")]), 200, b'"outcome":"coalesced"'),
        (Unavailable("Away.", retry_after=2), 503, b'"code":"unavailable"'),
    ]
    for outcome, status, said in receipts:
        found, headers, body = way.tell(outcome)
        assert (found, said in body) == (status, True)
        assert b"content-length: %d\r\n" % len(body) in headers
        assert headers.endswith(b"x-request-id: r\r\n")
        replayed = isinstance(outcome, Receipt) and outcome.replayed
        assert (b"idempotency-replayed: true\r\n" in headers) == replayed
    await turn_of_the_loop()


async def test_what_nobody_has_foreseen_is_logged_and_a_500(way: Way) -> None:
    assert way.takes(request(HOST, b"x-request-id: r"))
    with capture_logs() as logs:
        status, _, body = way.tell(RuntimeError("secret"))
    assert status == 500
    assert b"secret" not in body
    [line] = logs
    assert (line["event"], line["path"], line["request_id"]) == ("request.failed", "/jobs", "r")
    await turn_of_the_loop()


async def test_answers_of_one_burst_are_counted_together(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[object, ...]] = []
    monkeypatch.setattr(way.edge, "count", lambda *said: counted.append(said))
    for _ in range(3):
        assert way.takes(request())
    tells = [tell for _, tell in way.taken]
    outcomes: list[Receipt | Exception] = [Receipt(["A"]), Receipt(["B"]), Unavailable()]
    for tell, outcome in zip(tells, outcomes, strict=True):
        tell(outcome)
    assert not counted
    await asyncio.wait_for(turn_of_the_loop(), 60)
    assert sorted(cast("tuple[str, str, int]", each[:3]) for each in counted) == [
        ("POST", "/jobs", 202),
        ("POST", "/jobs", 503),
    ]
    assert sorted(len(each) - 3 for each in counted) == [1, 2]
