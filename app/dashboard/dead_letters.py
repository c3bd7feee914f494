"""/ui/dead-letters: what was given up, by what it died of; and the jobs of one such group."""

from datetime import UTC, datetime

from starlette.responses import Response
from ulid import ULID

from app.api import dead_letters as api
from app.api.job_documents import DeadLetterGroup
from app.api.job_parameters import JobIdInPath, decode_cursor
from app.api.jobs import page_of
from app.api.routes import Reply, Routes
from app.dashboard import job_filter
from app.dashboard.job_filter import Asked, Pair, address
from app.dashboard.job_lines import lines_of
from app.dashboard.page import Page, Said, Visit
from app.dashboard.words import short_id
from app.errors import ForemanError
from app.identity.scopes import Scope
from app.jobs.states import State

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}
PATH = "/ui/dead-letters"
BULK = "/ui/bulk-operations/new"
PAGE_SIZE = 50
LOOK_SECONDS = 0.4
OWN = frozenset({"cursor"})
# Together they name one group, whose jobs are listed.
GROUP = ("error", "kind", "queue")


@routes.get(PATH, Scope.ADMIN_READ, "Dead letters", PAGE, documented=False)
async def dead_letters_page(visit: Visit) -> Response:
    query = visit.request.query_params
    asked = job_filter.parse(query.multi_items(), datetime.now(UTC), OWN)
    if asked.filter.states or asked.first("q"):
        asked.problems.append("Dead letters are failed jobs: neither a state nor a search says more of them.")
        asked.pairs = [pair for pair in asked.pairs if pair[0] not in {"state", "q"}]
    asked.filter.states = [State.FAILED]
    asked.filter.before = job_filter.cursor_of(asked, query.get("cursor", ""))
    one = all(asked.first(name) for name in GROUP)
    return await (_group_page if one else _groups_page)(visit, asked)


async def _groups_page(visit: Page, asked: Asked) -> Response:
    found = await api.groups_of(visit.services, asked.filter, visit.tenant)
    lines = {line.job.job_id: line for line in await lines_of(visit, [each.newest for each in found.groups])}
    return await visit.show(
        "dead_letters.html",
        asked=asked,
        chips=_chips(asked),
        groups=[(each, lines[each.newest.job_id], GroupLinks(each, asked)) for each in found.groups],
        jobs=sum(each.jobs for each in found.groups),
        found=found,
        looked_to=_moment_of(found.next_cursor),
        older=found.next_cursor and address(PATH, asked.pairs, cursor=found.next_cursor),
        links=Links(asked, [], address(PATH, asked.pairs)),
        newest=address(PATH, asked.pairs),
        is_newest=asked.filter.before is None,
    )


async def _group_page(visit: Page, asked: Asked) -> Response:
    found, cursor = await page_of(visit.services, asked.filter, visit.tenant, PAGE_SIZE, seconds=LOOK_SECONDS)
    return await visit.show(
        "dead_letter_group.html",
        asked=asked,
        lines=await lines_of(visit, found),
        is_short=len(found) < PAGE_SIZE,
        looked_to=_moment_of(cursor),
        older=cursor and address(PATH, asked.pairs, cursor=cursor),
        links=Links(asked, [], address(PATH, asked.pairs)),
        newest=address(PATH, asked.pairs),
        is_newest=asked.filter.before is None,
        groups=PATH,
    )


class Links:
    """To the pages that count what would be done to all that are meant, before it is."""

    def __init__(self, asked: Asked, more: list[Pair], back: str) -> None:
        wanted = [*asked.pairs, *more]
        failed = [("state", str(State.FAILED)), *wanted]
        self.replay = address(BULK, [*failed, ("action", "retry")], back=back)
        self.dismiss = address(BULK, [*failed, ("action", "dismiss")], back=back)
        self.jobs = address("/ui/jobs", failed)


class GroupLinks(Links):
    def __init__(self, group: DeadLetterGroup, asked: Asked) -> None:
        named = [("error", group.error or ""), ("kind", group.kind), ("queue", group.queue)]
        rest = [pair for pair in asked.pairs if pair[0] not in GROUP]
        within = Asked(pairs=rest)
        super().__init__(within, named, address(PATH, asked.pairs))
        self.group = address(PATH, [*rest, *named])
        # One without a code is no group that a filter could name.
        self.can_act = bool(group.error)


def _chips(asked: Asked) -> list[tuple[str, str, str]]:
    return [
        (name, value, address(PATH, [each for each in asked.pairs if each != (name, value)]))
        for name, value in asked.pairs
    ]


def _moment_of(cursor: str | None) -> datetime | None:
    return None if cursor is None else ULID.from_str(decode_cursor(cursor)).datetime


@routes.post(f"{PATH}/{{job_id}}/replay", Scope.ADMIN_WRITE, "Replay it", MOVED, documented=False)
async def replay(visit: Visit, job_id: JobIdInPath) -> Response:
    back = (await visit.form()).back(PATH)
    try:
        await api.replay(visit.services, visit.tenant, job_id)
    except ForemanError as problem:
        return visit.failed(back, problem)
    return visit.go(back, Said(f"Job {short_id(job_id)} is queued again."))


@routes.post(f"{PATH}/{{job_id}}/dismiss", Scope.ADMIN_WRITE, "Dismiss it", MOVED, documented=False)
async def dismiss(visit: Visit, job_id: JobIdInPath) -> Response:
    back = (await visit.form()).back(PATH)
    try:
        await api.dismiss(visit.services, visit.tenant, job_id)
    except ForemanError as problem:
        return visit.failed(back, problem)
    return visit.go(back, Said(f"Job {short_id(job_id)} is dismissed."))
