"""Server and client that were not made for each other say so, once, and cost nothing while they are."""

import asyncio
import logging
import warnings
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

import foreman_client as fc
from foreman_client import AsyncForeman, Foreman, ServerVersion, VersionMismatchWarning, Worker, compatibility
from foreman_client.compatibility import fits
from tests.client.conftest import working
from tests.client.wire_stub import ACCEPTED, Answer, WireStub, problem, running_stub
from tests.conftest import Server, free_port
from tests.patience import until

JOB_ID = "01J00000000000000000000001"
DONE = Answer(200, {"job_id": JOB_ID, "kind": "noop", "queue": "default", "state": "done"})
OLD = Answer(200, {"name": "foreman", "version": "0.0.9", "client": "<0.1"})


@pytest.fixture
def stub() -> Iterator[WireStub]:
    with running_stub() as stub:
        yield stub


@pytest.fixture(autouse=True)
def nothing_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "_warned", set())


# --- comparing --------------------------------------------------------------------------------------------

NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
BOUNDS = st.tuples(st.sampled_from([">=", "<=", "==", "!=", ">", "<"]), NUMBERS).map("".join)


@given(NUMBERS, st.lists(BOUNDS, min_size=1, max_size=3).map(",".join))
def test_versions_are_compared_as_installers_do(version: str, versions: str) -> None:
    assert fits(version, versions) == SpecifierSet(versions).contains(version)


@pytest.mark.parametrize(
    ("version", "versions", "expected"),
    [
        ("0.2.0rc1", ">=0.2", True),
        ("0.2.0.dev3", "<0.2", False),
        ("0.10", ">=0.9,<0.11", True),
        (" v0.1.0+local", " >= 0.1 , < 0.2 ", True),
        # What cannot be read alarms nobody.
        ("unknown", ">=0.1,<0.2", True),
        ("", "", True),
        ("9" * 5000, ">=0.1,<0.2", True),
        ("0.1", "~=0.3", True),
        ("0.1", "~=0.3,<0.1", False),
        ("\N{ARABIC-INDIC DIGIT FIVE}", ">=0.1,<0.2", True),
    ],
)
def test_odd_versions_are_compared_as_far_as_they_can_be_read(
    version: str, versions: str, expected: bool
) -> None:
    assert fits(version, versions) is expected


def test_a_mismatch_names_both_versions_and_who_was_made_for_what() -> None:
    both = ServerVersion("9.1", ">=9,<10").mismatch
    assert both is not None
    assert f"server 9.1 and foreman-client {fc.__version__}" in both
    assert f"this client is for servers {fc.SERVER_VERSIONS}" in both
    assert "this server is for clients >=9,<10" in both
    assert "servers" not in (ServerVersion("0.1.5", ">=9").mismatch or "")
    assert "clients" not in (ServerVersion("9.1", ">=0.1").mismatch or "")
    assert ServerVersion("0.1.5", ">=0.1,<0.2").mismatch is None
    # A server from before it had a word on clients.
    assert ServerVersion("0.1.0").mismatch is None


def test_what_a_stranger_calls_its_version_is_shown_without_its_controls() -> None:
    shown = ServerVersion.from_wire({"version": "9\x1b[31m" + "9" * 1000, "client": 7})
    assert "\x1b" not in shown.version
    assert len(shown.version) < 100
    assert shown.client is None


# --- asking -----------------------------------------------------------------------------------------------


def test_server_and_client_of_this_checkout_fit(foreman: Foreman) -> None:
    server = foreman.check_version()
    assert server == foreman.server_version()
    assert server.client is not None
    assert server.mismatch is None


def test_every_request_says_which_client_it_is_from(stub: WireStub) -> None:
    stub.answers(ACCEPTED)
    with Foreman(stub.url) as foreman:
        foreman.submit("noop")
    assert [seen.headers["user-agent"] for seen in stub.seen] == [f"foreman-client/{fc.__version__}"]


def test_a_check_warns_once_also_for_whoever_wants_every_warning(stub: WireStub) -> None:
    stub.answers(OLD)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            with Foreman(stub.url) as foreman:
                assert foreman.check_version().version == "0.0.9"
                foreman.check_version()
    assert [each.category for each in said] == [VersionMismatchWarning]


# --- when an answer makes no sense ------------------------------------------------------------------------


def test_submitting_and_waiting_ask_for_no_version(stub: WireStub) -> None:
    stub.answers(ACCEPTED, DONE)
    with Foreman(stub.url) as foreman:
        foreman.submit("noop").wait(10)
    assert [seen.path.partition("?")[0] for seen in stub.seen] == ["/jobs", f"/jobs/{JOB_ID}"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(202, {"id": "new-fangled"}),
        Answer(202, b"<html>"),
        problem(404, "not_found"),
        Answer(404, b"no such page"),
        problem(405, "method_not_allowed"),
    ],
)
def test_an_answer_that_makes_no_sense_is_explained_by_the_versions(stub: WireStub, answer: Answer) -> None:
    stub.answers(answer, OLD, answer)
    with Foreman(stub.url) as foreman:
        with (
            pytest.warns(VersionMismatchWarning, match=r"server 0\.0\.9"),
            pytest.raises(fc.ApiError) as first,
        ):
            foreman.submit("noop")
        # Said once, but it stands with every error; and the server is not asked again.
        with pytest.raises(fc.ApiError) as second:
            foreman.submit("noop")
    assert first.value.__notes__ == second.value.__notes__
    assert "this server is for clients <0.1" in first.value.__notes__[0]
    assert [seen.path for seen in stub.seen] == ["/jobs", "/version", "/jobs"]


async def test_the_same_awaited_and_for_a_stream(stub: WireStub) -> None:
    stub.answers(problem(404, "not_found"), OLD)
    async with AsyncForeman(stub.url) as foreman:
        with pytest.warns(VersionMismatchWarning), pytest.raises(fc.JobNotFound):
            await anext(foreman.events(JOB_ID))


def test_whoever_makes_errors_of_warnings_still_gets_the_error_itself(stub: WireStub) -> None:
    stub.answers(problem(405, "method_not_allowed"), OLD)
    with Foreman(stub.url) as foreman, pytest.raises(fc.MethodNotAllowed) as raised:
        foreman.submit("noop")
    assert raised.value.__notes__


@pytest.mark.parametrize(
    "version",
    [
        Answer(200, {"name": "foreman", "version": "0.1.0", "client": ">=0.1"}),
        problem(404, "not_found"),
        Answer(200, ["not", "ours"]),
        Answer(cut=True),
    ],
)
def test_where_versions_are_not_to_blame_nothing_is_said_of_them(stub: WireStub, version: Answer) -> None:
    stub.answers(problem(405, "method_not_allowed"), version)
    with Foreman(stub.url) as foreman, pytest.raises(fc.MethodNotAllowed) as raised:
        foreman.submit("noop")
    assert not getattr(raised.value, "__notes__", [])


def test_a_job_that_is_not_there_is_no_riddle(stub: WireStub) -> None:
    stub.answers(problem(404, "not_found"))
    with Foreman(stub.url) as foreman, pytest.raises(fc.JobNotFound):
        foreman.get(JOB_ID)
    assert [seen.path for seen in stub.seen] == [f"/jobs/{JOB_ID}"]


# --- workers ----------------------------------------------------------------------------------------------


async def test_a_worker_compares_versions_beside_its_work(
    shared_server: Server,
    aforeman: AsyncForeman,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Warnings are errors in this suite: even so it works on."""
    monkeypatch.setattr(compatibility, "SERVER_VERSIONS", ">=77")
    worker = Worker(shared_server.url)

    @worker.task("of-another-version")
    async def handle() -> int:
        return 7

    handle_ = await aforeman.submit("of-another-version")
    with caplog.at_level(logging.WARNING, "foreman_client.worker"):
        async with working(worker):
            assert await handle_.result(30) == 7
            await until(lambda: "this client is for servers >=77" in caplog.text)


async def test_a_worker_warns_as_soon_as_a_server_that_was_away_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()
    answers = iter([fc.Unreachable("away", maybe_received=False), fc.Unavailable("later")])

    async def check_version(self: AsyncForeman) -> ServerVersion:
        for error in answers:
            raise error
        asked.set()
        return ServerVersion("0.1.0")

    monkeypatch.setattr(AsyncForeman, "check_version", check_version)
    worker = Worker(f"http://127.0.0.1:{free_port()}")
    worker.task("any")(print)
    task = asyncio.create_task(worker.serve())
    async with asyncio.timeout(60):
        await asked.wait()
    assert not task.done()
    worker.stop()
    with suppress(fc.ForemanError):
        await task


async def test_a_worker_whose_server_has_no_claims_says_which_versions_met(
    stub: WireStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = problem(404, "not_found")
    monkeypatch.setattr(stub, "next_answer", lambda seen: OLD if seen.path == "/version" else missing)
    worker = Worker(stub.url)
    worker.task("any")(print)
    with warnings.catch_warnings(record=True) as said, pytest.raises(fc.NotFound):
        warnings.simplefilter("always")
        await worker.serve()
    assert [each.category for each in said] == [VersionMismatchWarning]
