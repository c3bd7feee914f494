"""Short ids: shown in tables on a terminal, taken by every command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli import ids
from app.cli.errors import CommandError, ExitCode
from app.cli.output import Output
from app.jobs.ids import new_id
from tests.cli.conftest import Foreman
from tests.client.wire_stub import problem, running_stub
from tests.conftest import Server

ID = "01M7P9TPVBBRW7M0DY7CMFT8NX"
DIGITS = st.text(alphabet=ids.DIGITS, min_size=25, max_size=25)


@given(
    st.lists(st.tuples(st.sampled_from("0123"), DIGITS).map("".join), min_size=1, max_size=30, unique=True)
)
def test_short_ids_are_as_different_as_the_whole_ones_and_lead_back_to_them(whole: list[str]) -> None:
    short = ids.shortened(whole)
    assert len(set(short.values())) == len(short)
    for text, shown in short.items():
        assert len(shown) < len(text)
        assert ids.matching(shown, whole) == [text]
        assert ids.matching(shown.lower().replace("..", "…"), whole) == [text]


def test_ids_of_one_moment_are_told_apart_by_their_ends() -> None:
    whole = [new_id() for _ in range(1000)]
    assert len(set(ids.shortened(whole).values())) == 1000
    assert ids.shortened([ID]) == {ID: "01M7P9TP..T8NX"}
    assert ids.shortened([f"{ID}-4"]) == {f"{ID}-4": "01M7P9TP..T8NX-4"}
    # Longer where four letters do not tell them apart, and whole where nothing shorter does.
    near = ID[:-5] + "0" + ID[-4:]
    assert ids.shortened([ID, near]) == {ID: "01M7P9TP..FT8NX", near: "01M7P9TP..0T8NX"}
    assert ids.shortened([ID, ID[:9] + "0" + ID[10:]]) == {}
    assert ids.shortened(["", "echo", "01J", ID.lower()]) == {}


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Output, "is_terminal", True)
    monkeypatch.setattr(Output, "width", 80)


def test_a_table_shows_them_short_and_every_command_takes_them(
    foreman: Foreman, on_terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [foreman("submit", "--kind", "short", "--queue", "short").out.strip() for _ in range(3)]
    table = foreman("list", "--kind", "short").out
    assert all(len(line) <= 80 for line in table.splitlines())
    short = [line.split()[0] for line in table.splitlines()[1:] if line[0] == "0"]
    assert len(short) == 3
    assert not set(short) & set(whole)
    for text, job_id in zip(short, reversed(whole), strict=True):
        assert foreman("get", text, "--json").json()["job_id"] == job_id
        assert foreman("get", text.lower(), "--json").json()["job_id"] == job_id
    newest = short[0]
    assert foreman("events", newest, "--json").lines()[0]["type"] == "queued"
    assert foreman("send", newest, "approve").out == f"{whole[-1]} event 2\n"
    assert foreman("cancel", newest).out == f"{whole[-1]} cancelled\n"
    assert foreman("wait", newest).code == 1
    assert foreman("webhooks", newest).code == 0
    made = foreman("submit", "--kind", "short", "--depends-on", short[1], "--parent", short[2])
    assert foreman("get", made.out.strip(), "--json").json()["parent_id"] == whole[0]
    assert foreman("cancel", *short[1:]).code == 0
    assert foreman("delete", newest).out == f"{whole[-1]} deleted\n"
    # For machines they are whole, wherever they go.
    assert [
        job["job_id"] for job in foreman("list", "--kind", "short", "--limit", "1", "--json").json()["jobs"]
    ]
    monkeypatch.setattr(Output, "is_terminal", False)
    assert whole[0] in foreman("list", "--kind", "short").out


def test_dead_letters_and_keys_have_short_ids_as_well(foreman: Foreman, on_terminal: None) -> None:
    fail = ("--payload", '{"options": {"echo_fail": "permanent"}}')
    job_id = foreman("submit", "--model", "echo", "--queue", "gone", "--wait", "--json", "x", *fail).json()[
        "job_id"
    ]
    [short] = [
        line.split()[0] for line in foreman("dead", "--queue", "gone").out.splitlines() if line[0] == "0"
    ]
    assert foreman("dead", "dismiss", short).out == f"{job_id} dismissed\n"
    made = [foreman("keys", "create", f"short-{n}", "--json").json()["key_id"] for n in range(2)]
    table = foreman("keys").out
    shown = [line.split()[0] for line in table.splitlines() if "short-" in line]
    assert len(shown) == 2
    assert foreman("keys", "revoke", shown[0]).out == f"{made[1]} revoked\n"
    assert foreman("keys", "revoke", shown[0]).code == 3
    assert foreman("keys", "revoke", made[0][:6]).code in {0, 2}


def test_one_that_may_be_several_or_is_none_is_said(foreman: Foreman) -> None:
    whole = [foreman("submit", "--kind", "several").out.strip() for _ in range(2)]
    ambiguous = foreman("cancel", whole[0][:3])
    assert ambiguous.code == 2
    assert "may be any of" in ambiguous.err
    assert foreman("get", whole[0], "--json").json()["state"] == "queued"
    for unknown in ("01ZZZZZZ..AAAA", "7ZZZZZZZZZ", "ZZ", "nonsense!", "..", f"{whole[0][:8]}..!", "0" * 30):
        outcome = foreman("get", unknown)
        assert outcome.code == 3, outcome
        assert "no job" in outcome.err.lower() or "no such job" in outcome.err.lower()
    # One that is unknown does not keep the others from being cancelled.
    outcome = foreman("cancel", "nope", whole[0], f"{whole[1][:8]}..{whole[1][-6:]}")
    assert outcome.code == 3
    assert outcome.out == "".join(f"{each} cancelled\n" for each in whole)
    assert outcome.err == "foreman: there is no job nope\n"


def test_where_too_many_come_into_question_none_is_taken(
    foreman: Foreman, shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "MOST_LOOKED", 2)
    monkeypatch.setattr(ids, "PAGE", 1)
    whole = [foreman("submit", "--kind", "many").out.strip() for _ in range(4)]
    outcome = foreman("cancel", whole[0][:2])
    assert outcome.code == 2
    assert "give more of the id" in outcome.err


def test_a_key_that_may_not_look_is_told_to_give_the_whole_id(foreman: Foreman) -> None:
    with running_stub() as stub:
        stub.answers(problem(403, "forbidden"))
        outcome = foreman("cancel", "01M7P9TP..T8NX", "--server", stub.url)
    assert outcome.code == 5
    assert "give the whole id" in outcome.err


def test_of_several_that_are_meant_some_are_named() -> None:
    with pytest.raises(CommandError, match=r"may be any of 4 keys: .* …") as ambiguous:
        ids.one_of("01", [f"01{n}" for n in range(4)], "key")
    assert ambiguous.value.code is ExitCode.USAGE
