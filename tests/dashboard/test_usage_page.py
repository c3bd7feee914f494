"""/ui/usage: sums by model, key and day; what is wrong with a window is said; the same as CSV."""

import csv
import html
import io
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from app.identity.scopes import ALL_SCOPES, Scope
from tests.conftest import Server
from tests.dashboard.visitor import Visitor, text_of

HOSTILE = "<script>alert('m')</script>\"&\u202e" + "m" * 5000
FIGURES = "jobs, prompt_tokens, completion_tokens, load_seconds, prefill_seconds, decode_seconds"


def today() -> date:
    return datetime.now(UTC).date()


@pytest.fixture
def caller(guarded: Server, tenant: str) -> Iterator[httpx.Client]:
    with guarded.client(guarded.key(tenant, *ALL_SCOPES, name="reports")) as client:
        yield client


@pytest.fixture
def person(guarded: Server, stranger: Visitor, tenant: str) -> Visitor:
    stranger.sign_in(guarded.key(tenant, Scope.ADMIN_READ))
    return stranger


class Ledger:
    """What was used long ago, as the server would have booked it."""

    def __init__(self, connection: "asyncpg.Connection[Any]", tenant: str) -> None:
        self._connection = connection
        self._tenant = tenant

    async def add(self, model: str, days_ago: int = 0, *, jobs: int = 1, tokens: int = 10) -> None:
        await self._connection.execute(
            f"INSERT INTO usage_days (tenant, model, day, {FIGURES}) VALUES ($1, $2, $3, $4, $5, $5, 1, 2, 5)",
            self._tenant,
            model,
            today() - timedelta(days=days_ago),
            jobs,
            tokens,
        )


@pytest.fixture
async def ledger(guarded: Server, tenant: str) -> AsyncIterator[Ledger]:
    connection = await asyncpg.connect(guarded.database_url)
    yield Ledger(connection, tenant)
    await connection.close()


def rows_of(page: str, table: str = r'<table id="days">') -> list[list[str]]:
    found = re.search(rf"{table}.*?</table>", page, re.DOTALL)
    assert found is not None, text_of(page)
    rows = re.findall(r"<tr\b.*?</tr>", found[0], re.DOTALL)
    return [
        [text_of(cell).strip() for cell in re.findall(r"<t[dh]\b.*?</t[dh]>", row, re.DOTALL)] for row in rows
    ]


def csv_of(person: Visitor, query: str = "") -> list[dict[str, str]]:
    answer = person.http.get(f"/ui/usage.csv{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].startswith('attachment; filename="foreman-usage-by-')
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_usage_is_summed_by_model_and_day(ledger: Ledger, person: Visitor) -> None:
    await ledger.add("large", jobs=3, tokens=1000)
    await ledger.add("large", days_ago=1, jobs=2, tokens=500)
    await ledger.add("small", days_ago=1)
    page = person.get("/ui/usage")
    assert rows_of(page) == [
        [
            "Day",
            "Model",
            "Jobs",
            "Prompt tokens",
            "Completion tokens",
            "Load",
            "Prefill",
            "Decode",
            "Tokens/s",
        ],
        [str(today()), "large", "3", "1 000", "1 000", "1.0 s", "2.0 s", "5.0 s", "200"],
        [str(today() - timedelta(days=1)), "large", "2", "500", "500", "1.0 s", "2.0 s", "5.0 s", "100"],
        [str(today() - timedelta(days=1)), "small", "1", "10", "10", "1.0 s", "2.0 s", "5.0 s", "2"],
    ]
    ranked = rows_of(page, '<table class="ranked">')
    assert [row[0] for row in ranked[1:]] == ["■ large", "■ small"]
    assert ranked[1][2:5] == ["5", "1 500", "1 500"]
    # What a spreadsheet is given has no blanks in its numbers.
    assert '<data value="1000">' in page
    assert page.count('class="block series-1"') == 2


async def test_usage_is_summed_by_day_alone(ledger: Ledger, person: Visitor) -> None:
    for model in ("large", "small"):
        await ledger.add(model, jobs=2)
    page = person.get("/ui/usage?by=day&show=seconds")
    assert [row[:2] for row in rows_of(page)[1:]] == [[str(today()), "4"]]
    assert "Time on targets per day" in page
    assert re.findall(r'<li class="series-\d">(\w+)</li>', page) == ["load", "prefill", "decode"]


def test_usage_is_summed_by_key(caller: httpx.Client, person: Visitor) -> None:
    chat = {"model": "echo", "stream": False, "messages": [{"role": "user", "content": "Hello there"}]}
    assert caller.post("/api/chat", json=chat).status_code == 200
    assert [row[1:3] for row in rows_of(person.get("/ui/usage?by=key"))[1:]] == [["reports", "1"]]
    [row] = csv_of(person, "?by=key")
    assert (row["key"], row["jobs"], len(row["key_id"])) == ("reports", "1", 26)


async def test_a_window_has_the_days_that_it_says(ledger: Ledger, person: Visitor) -> None:
    for days_ago in (0, 6, 7, 29, 30, 89, 90):
        await ledger.add("large", days_ago)
    for query, count in (("?days=7", 2), ("", 4), ("?days=30", 4), ("?days=90", 6)):
        assert len(rows_of(person.get(f"/ui/usage{query}"))) - 1 == count, query
    since, until = today() - timedelta(days=30), today() - timedelta(days=7)
    page = person.get(f"/ui/usage?since={since}&until={until}")
    assert [row[0] for row in rows_of(page)[1:]] == [
        str(today() - timedelta(days=days_ago)) for days_ago in (7, 29, 30)
    ]
    # The links to other sums keep the window, the CSV has the same.
    assert f"/ui/usage?since={since}&amp;until={until}&amp;by=key" in page
    assert len(csv_of(person, f"?since={since}&until={until}")) == 3


async def test_one_model_may_be_looked_at(ledger: Ledger, person: Visitor) -> None:
    await ledger.add("large")
    await ledger.add("small")
    page = person.get("/ui/usage?model=small")
    assert [row[1] for row in rows_of(page)[1:]] == ["small"]
    assert "remove this filter" in page
    said = text_of(person.get("/ui/usage?model=nothing"))
    assert f"Nothing was used of nothing from {today() - timedelta(days=29)} to {today()}." in said


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=yesterday", "since: must be a date such as 2026-01-31"),
        ("until=2026-02-30", "until: must be a date such as 2026-01-31"),
        ("since=2026-02-02&until=2026-02-01", "since: must not be after until"),
        ("since=2024-01-01&until=2026-01-01", "since: must be within 366 days of until"),
        ("since=0001-01-01", "since: must be within 366 days of until"),
        ("days=8", "days: must be one of 7, 30, 90"),
        ("days=%D9%A7", "days: must be one of 7, 30, 90"),
        ("days=7&since=2026-01-01&until=2026-01-02", "days: goes without since and until"),
        ("by=hour", "by: must be one of model, key, day"),
        ("show=money", "show: must be one of tokens, jobs, seconds"),
        ("since=%3Cscript%3E&by=%22%27", "by: must be one of model, key, day"),
    ],
)
def test_what_is_wrong_with_a_window_is_said(person: Visitor, query: str, said: str) -> None:
    page = person.get(f"/ui/usage?{query}", 422)
    assert said in text_of(page)
    assert "<script>" not in page
    answer = person.http.get(f"/ui/usage.csv?{query}")
    assert answer.status_code == 422
    assert said in text_of(answer.text)


def test_a_wrong_date_is_kept_in_its_field(person: Visitor) -> None:
    page = person.get("/ui/usage?since=yesterday&until=2026-01-31&model=large", 422)
    assert re.search(r'<input id="f-since" [^>]*type="text" value="yesterday"[^>]* aria-invalid="true"', page)
    assert 'value="2026-01-31"' in page
    assert 'value="large"' in page


@pytest.mark.parametrize(
    "query", ["until=0001-01-01", "until=9999-12-31", "since=9999-12-31&until=9999-12-31"]
)
def test_absurd_days_are_merely_empty(person: Visitor, query: str) -> None:
    assert "Nothing was used" in text_of(person.get(f"/ui/usage?{query}"))


def test_an_unknown_filter_is_said_so(person: Visitor) -> None:
    for path in ("/ui/usage", "/ui/usage.csv"):
        assert "modle: is not a known filter" in text_of(person.get(f"{path}?modle=large", 422))


async def test_names_of_models_are_shown_as_text(ledger: Ledger, person: Visitor) -> None:
    await ledger.add(HOSTILE)
    page = person.get("/ui/usage")
    assert "<script>alert" not in page
    assert HOSTILE in text_of(page)
    [link] = re.findall(r'<a class="cut" href="([^"]*)"', page)
    assert [row[1] for row in rows_of(person.get(html.unescape(link)))[1:]] == [HOSTILE]


async def test_no_cell_of_the_csv_is_a_formula(ledger: Ledger, person: Visitor) -> None:
    for name in ("=1+1", "+1", "-1", "@SUM(1)", "plain, with a comma"):
        await ledger.add(name)
    assert {row["model"] for row in csv_of(person)} == {
        "'=1+1",
        "'+1",
        "'-1",
        "'@SUM(1)",
        "plain, with a comma",
    }


async def test_of_many_models_the_largest_have_a_colour_and_the_others_share_one(
    ledger: Ledger, person: Visitor
) -> None:
    for number in range(60):
        for days_ago in range(7):
            await ledger.add(f"m{number:02}", days_ago, tokens=1000 - number)
    page = person.get("/ui/usage?days=7")
    assert len(set(re.findall(r'class="block (series-\d)"', page))) == 7
    assert "54 others" in html.unescape(page)
    assert "And 10 others" in text_of(page)
    assert len(rows_of(page)) - 1 == 400
    assert "The first 400 of 420 rows" in text_of(page)
    assert len(csv_of(person, "?days=7")) == 420


async def test_what_other_tenants_used_is_theirs(ledger: Ledger, admin: Visitor) -> None:
    name = f"theirs-{uuid.uuid4().hex}"
    await ledger.add(name)
    assert name not in admin.get("/ui/usage")
    assert name not in admin.http.get("/ui/usage.csv").text


def test_a_page_without_usage_teaches_what_counts(guarded: Server, person: Visitor) -> None:
    said = text_of(person.get("/ui/usage"))
    assert "Nothing was used in the last 30 days." in said
    assert f'curl {guarded.url}/api/chat -H "Authorization: Bearer $FOREMAN_API_KEY"' in said
    assert csv_of(person) == []
