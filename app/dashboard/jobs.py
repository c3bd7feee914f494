"""/ui/jobs: the list and its filters.

What is shown stays where it is: an open page asks again for the very jobs that it shows, and says how many
others match by now.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.responses import Response
from ulid import ULID

from app.api import jobs as api
from app.api.job_parameters import METADATA, decode_cursor
from app.api.routes import Reply, Routes
from app.dashboard import job_filter
from app.dashboard.bulk import ACTIONS, actions_for
from app.dashboard.job_filter import Asked, address
from app.dashboard.job_lines import Line, lines_of
from app.dashboard.page import Page, Visit
from app.errors import NotFound
from app.identity.scopes import Scope
from app.jobs.ids import is_id
from app.jobs.states import State
from app.store import read
from app.store.census import QueueCount
from app.store.read import Filter

routes = Routes("dashboard")
PATH = "/ui/jobs"
PAGE_SIZE = 50
# For how long a page is kept waiting for what is rare; the next page goes on from there.
LOOK_SECONDS = 0.4
# What the list itself has in its address: where the page begins, and what an open one shows.
OWN = frozenset({"cursor", "shown"})
EXAMPLE = '{"model": "echo", "messages": [{"role": "user", "content": "Hello, Foreman!"}]}'
PAGE = Reply("The page", str, media_type="text/html")


@dataclass(slots=True)
class Listed:
    """What a page shows; `ids` also has those that were removed since it was first shown."""

    ids: Sequence[str]
    lines: dict[str, Line]
    next_cursor: str | None = None
    # How many others match by now, and whether there are more.
    new: int = 0
    has_more_new: bool = False

    @property
    def looked_to(self) -> datetime | None:
        """How far back was looked, where that is not to the end and the page is not full."""
        if self.next_cursor is None or len(self.ids) >= PAGE_SIZE:
            return None
        return ULID.from_str(decode_cursor(self.next_cursor)).datetime


@routes.get(PATH, Scope.JOBS_READ, "Jobs", PAGE, documented=False)
async def jobs_page(visit: Visit) -> Response:
    query = visit.request.query_params
    asked = job_filter.parse(query.multi_items(), datetime.now(UTC), OWN)
    if asked.has_blanks and not asked.problems and not visit.is_partial:
        return visit.go(address(PATH, asked.pairs))
    if asked.job_id is not None and await _is_there(visit, asked, asked.job_id):
        return visit.go(f"{PATH}/{asked.job_id}")
    reading = await _read_word(visit, asked)
    cursor = query.get("cursor", "")
    asked.filter.before = job_filter.cursor_of(asked, cursor)
    shown = query.get("shown") if visit.is_partial else None
    listed = await (_first(visit, asked.filter) if shown is None else _again(visit, asked.filter, shown))
    newest = address(PATH, asked.pairs)
    census = await visit.services.queues.census.take() if visit.may(Scope.ADMIN_READ) else None
    return await visit.show(
        "jobs.html",
        asked=asked,
        reading=reading,
        listed=listed,
        counts=None if census is None else _counts(census, asked.filter.queue),
        queues=[] if census is None else sorted(census),
        states=[(state, _only(asked, state)) for state in State],
        all_states=address(PATH, [pair for pair in asked.pairs if pair[0] != "state"]),
        chips=_chips(asked),
        newest=newest,
        older=listed.next_cursor and address(PATH, asked.pairs, cursor=listed.next_cursor),
        again=address(PATH, asked.pairs, cursor=cursor) + ("&" if "?" in newest or cursor else "?"),
        is_newest=asked.filter.before is None,
        actions=actions_for(visit),
        all_actions=list(ACTIONS.values()),
        # Where all of them are shown, their number is known.
        total=len(listed.ids) if not listed.next_cursor and not cursor else None,
        command=f"curl {visit.origin}/jobs -d '{EXAMPLE}'",
        matching=job_filter.pairs_of(asked.filter),
        search=asked.first("q"),
    )


async def _first(visit: Page, wanted: Filter) -> Listed:
    found, cursor = await api.page_of(visit.services, wanted, visit.tenant, PAGE_SIZE, seconds=LOOK_SECONDS)
    lines = await lines_of(visit, found)
    return Listed([job.job_id for job in found], {line.job.job_id: line for line in lines}, cursor)


async def _again(visit: Page, wanted: Filter, shown: str) -> Listed:
    """The same jobs as they are now, whether they still match or not."""
    ids = [each for each in shown.split(",")[: 2 * PAGE_SIZE] if is_id(each)]
    found = await api.documents_of(visit.services, ids, visit.tenant)
    lines = await lines_of(visit, list(found.values()))
    listed = Listed(ids, {line.job.job_id: line for line in lines})
    if wanted.before is None:
        # No longer than it takes to look once: it is asked for again and again.
        others = await read.list_jobs(visit.services.database, wanted, visit.tenant, PAGE_SIZE, seconds=0)
        # Behind a page that is full, others match that were never shown.
        last = min(ids) if len(ids) >= PAGE_SIZE else ""
        listed.new = len([job for job in others.jobs if job.id > last and job.id not in ids])
        listed.has_more_new = listed.new == PAGE_SIZE
    return listed


async def _is_there(visit: Page, asked: Asked, job_id: str) -> bool:
    try:
        await api.existing_job(visit.services, job_id, visit.tenant)
    except NotFound:
        asked.filter.id_prefix = job_id
        return False
    return True


async def _read_word(visit: Page, asked: Asked) -> str:
    """As what a word of the search is looked for: as a model if any job has it, and else as a kind.

    Not as a part of a name: that would mean to read every job there is.
    """
    wanted, word = asked.filter, asked.word
    if word is None or wanted.kind == word:
        return "" if word is None else f"Kind {word}"
    model = Filter(model=word)
    found = await read.list_jobs(visit.services.database, model, visit.tenant, 1, seconds=0)
    if found.jobs and wanted.model in {None, word}:
        wanted.model = word
        return f"Model {word}"
    wanted.kind = word
    return f"Kind {word}"


def _counts(census: dict[str, QueueCount], queue: str | None) -> dict[str, int]:
    """Of all tenants: nobody counts them apart."""
    seen = [count for name, count in census.items() if queue in {None, name}]
    return {state: sum(each.states[state] for each in seen) for state in State}


def _only(asked: Asked, state: State) -> str:
    """The same list of this state alone; of all of them, if it shows this one alone already."""
    rest = [pair for pair in asked.pairs if pair[0] != "state"]
    return address(PATH, rest if asked.all("state") == [state] else [*rest, ("state", str(state))])


def _chips(asked: Asked) -> list[tuple[str, str, str]]:
    """Name, value, and the address without it."""
    return [
        (
            "search" if name == "q" else name.removeprefix(METADATA),
            value,
            address(PATH, [each for each in asked.pairs if each != (name, value)]),
        )
        for name, value in asked.pairs
        # States have chips of their own.
        if name != "state"
    ]
