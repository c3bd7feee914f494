"""/ui/dead-letters: what was given up, by what it died of."""

from collections.abc import Iterator

import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import wait_until
from tests.dashboard.job_pages import Visitor, hidden, links, shared_server, visiting
from tests.dashboard.visitor import text_of
from tests.sharing import FolderShare


@pytest.fixture
def visitor(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visitor]:
    with visiting(shared_server(share, postgres, tmp_path_factory)) as visitor:
        yield visitor


def test_an_empty_page_says_what_would_be_there(visitor: Visitor) -> None:
    assert "No dead letters: nothing was given up." in text_of(visitor.open("/ui/dead-letters"))


def test_groups_by_error_kind_and_queue_the_largest_first(visitor: Visitor) -> None:
    visitor.fail(2, "timeout", "No answer.", queue="a")
    [newest] = visitor.fail(1, "timeout", "No answer after 30 s.", queue="a")
    visitor.fail(1, "timeout", queue="b")
    visitor.fail(1, "out_of_memory", queue="a")
    page = visitor.open("/ui/dead-letters")
    text = text_of(page)
    assert "5 jobs that gave up, in 3 groups" in text
    first = page.partition("<tbody>")[2].partition("</tr>")[0]
    assert "No answer after 30 s." in first
    assert newest in first
    assert "/ui/dead-letters?error=timeout&kind=work&queue=a" in links(first)
    assert text_of(first).startswith("3 timeout")
    assert "1 job that gave up, in 1 group" in text_of(visitor.open("/ui/dead-letters?error=out_of_memory"))
    assert "No dead letter matches." in visitor.open("/ui/dead-letters?queue=nothing")


def test_a_groups_jobs_are_listed_and_single_ones_replayed_or_dismissed(visitor: Visitor) -> None:
    ids = visitor.fail(3, "timeout", queue="a")
    visitor.fail(1, "other", queue="a")
    address = "/ui/dead-letters?error=timeout&kind=work&queue=a"
    page = visitor.open(address)
    assert [each for each in ids if f'data-href="/ui/jobs/{each}"' in page] == ids
    assert page.count("data-row") == 3
    replayed = visitor.send(f"/ui/dead-letters/{ids[0]}/replay", {"back": address}, page)
    assert replayed.headers["location"] == address
    assert "is queued again" in visitor.follow(replayed)
    dismissed = visitor.send(f"/ui/dead-letters/{ids[1]}/dismiss", {"back": address}, page)
    assert "is dismissed" in visitor.follow(dismissed)
    assert [visitor.state(each) for each in ids] == ["queued", "dismissed", "failed"]
    again = visitor.follow(visitor.send(f"/ui/dead-letters/{ids[1]}/replay", {"back": address}, page))
    assert "Only a failed job is a dead letter" in text_of(again)


@pytest.mark.parametrize(("action", "becomes"), [("retry", "queued"), ("dismiss", "dismissed")])
def test_a_group_is_counted_then_replayed_or_dismissed_as_a_whole(
    visitor: Visitor, action: str, becomes: str
) -> None:
    ids = visitor.fail(3, "timeout", queue="a")
    others = [*visitor.fail(1, "other", queue="a"), *visitor.fail(1, "timeout", queue="b")]
    page = visitor.open("/ui/dead-letters")
    first = page.partition("<tbody>")[2].partition("</tr>")[0]
    [address] = [each for each in links(first) if f"action={action}" in each]
    counted = visitor.open(address)
    assert "3 jobs?" in text_of(counted)
    assert [visitor.state(each) for each in ids] == ["failed"] * 3
    visitor.follow(visitor.send("/ui/bulk-operations", hidden(counted, "/ui/bulk-operations"), counted))
    wait_until(lambda: [visitor.state(each) for each in ids] == [becomes] * 3)
    assert [visitor.state(each) for each in others] == ["failed", "failed"]


def test_all_of_them_at_once(visitor: Visitor) -> None:
    ids = [*visitor.fail(1, "a"), *visitor.fail(1, "b", queue="x")]
    page = visitor.open("/ui/dead-letters")
    [address] = [each for each in links(page.partition("<tbody>")[0]) if "action=dismiss" in each]
    counted = visitor.open(address)
    assert "Dismiss 2 jobs?" in text_of(counted)
    visitor.follow(visitor.send("/ui/bulk-operations", hidden(counted, "/ui/bulk-operations"), counted))
    wait_until(lambda: [visitor.state(each) for each in ids] == ["dismissed", "dismissed"])


def test_what_makes_no_sense_is_said_and_the_rest_still_shown(visitor: Visitor) -> None:
    visitor.fail(1, "timeout", queue="a")
    for query, words in {
        "state=done": "Dead letters are failed jobs",
        "q=x": "Dead letters are failed jobs",
        "colour=red": "“colour” is not a filter",
        "cursor=x": "not one of ours",
        "since=soon": "neither a time",
    }.items():
        text = text_of(visitor.open(f"/ui/dead-letters?queue=a&{query}"))
        assert words in text, query
        assert "1 job that gave up" in text, query


def test_who_may_only_look_is_offered_nothing_else(visitor: Visitor) -> None:
    [job_id] = visitor.fail(1, "timeout", queue="a")
    reader = visitor.other("admin:read", "jobs:read")
    page = reader.open("/ui/dead-letters")
    assert "1 job that gave up" in text_of(page)
    assert "Replay" not in text_of(page)
    assert reader.send(f"/ui/dead-letters/{job_id}/replay", {}, page).status_code == 403
    visitor.other("jobs:read", "jobs:write").open("/ui/dead-letters", 403)


def test_another_tenants_are_not_there(visitor: Visitor) -> None:
    [job_id] = visitor.fail(1, "timeout", queue="a")
    stranger = visitor.stranger()
    page = stranger.open("/ui/dead-letters")
    assert "timeout" not in page
    assert job_id not in stranger.open("/ui/dead-letters?error=timeout&kind=work&queue=a")
    assert "There is no such job." in stranger.follow(
        stranger.send(f"/ui/dead-letters/{job_id}/dismiss", {"back": "https://elsewhere.example"}, page)
    )
    assert visitor.state(job_id) == "failed"
