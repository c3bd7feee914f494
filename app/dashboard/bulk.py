"""/ui/chosen and /ui/bulk-operations: one verb for many jobs, counted first.

Those that were chosen one by one are done at once; all that match a filter by the API's bulk operations,
whose progress has a page of its own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from fastapi import Depends
from starlette.responses import Response

from app.api import bulk as api
from app.api import dead_letters, jobs
from app.api.job_documents import Job
from app.api.operator_documents import BulkAction, BulkOperation
from app.api.routes import Reply, Routes
from app.dashboard import job_filter
from app.dashboard.job_filter import Asked, Pair, address, document_of, pairs_of
from app.dashboard.job_lines import by_state
from app.dashboard.page import Page, Said, Visit, own_or
from app.dashboard.words import counted
from app.errors import ForemanError, InvalidRequest
from app.identity.scopes import Scope
from app.jobs.ids import is_id
from app.jobs.states import LIVE, State
from app.store import bulk

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}
JOBS = "/ui/jobs"
PATH = "/ui/bulk-operations"
# As many as a list shows, and some.
MAX_CHOSEN = 200
# Who waits for a number does not wait for longer; what was counted by then is a lower bound.
COUNT_SECONDS = 2.0
OWN = frozenset({"action", "back", "job"})


@dataclass(frozen=True, slots=True)
class Action:
    name: BulkAction
    label: str
    # Of what becomes of them.
    done: str
    meaning: str
    needs: Scope = Scope.JOBS_WRITE
    is_final: bool = False

    @property
    def states(self) -> list[State]:
        return [state for state in State if state in bulk.ACTIONS[self.name]]


ACTIONS = {
    each.name: each
    for each in (
        Action(
            "cancel",
            "Cancel",
            "cancelled",
            "Those that wait end at once; workers of those that run are asked to stop. Children go along.",
            is_final=True,
        ),
        Action(
            "retry",
            "Retry",
            "queued again",
            "They start over under the same ids, with all their attempts.",
        ),
        Action(
            "dismiss",
            "Dismiss",
            "dismissed",
            "They are given up on, and stay to be read until their retention is over.",
            Scope.ADMIN_WRITE,
            is_final=True,
        ),
        Action(
            "delete",
            "Delete",
            "deleted",
            "They are removed with their events, results and artifacts. Nothing brings them back.",
            is_final=True,
        ),
    )
}


def action_of(given: str) -> Action:
    found = ACTIONS.get(cast(BulkAction, given))
    if found is None:
        raise InvalidRequest(f"There is no such action; there are {', '.join(ACTIONS)}.")
    return found


def actions_for(visit: Page) -> list[Action]:
    """What this visitor may do to jobs that are chosen one by one."""
    return [each for each in ACTIONS.values() if visit.may(each.needs)]


# -- those that were chosen --------------------------------------------------------------------------------


@routes.get("/ui/chosen", Scope.JOBS_READ, "What would be done to the chosen jobs", PAGE, documented=False)
async def chosen_page(visit: Visit) -> Response:
    query = visit.request.query_params
    back = own_or(query.get("back", ""), JOBS)
    ids = _ids(query.getlist("job"))
    if not ids:
        return visit.go(back, Said("No job is chosen.", "Tick those that are meant.", failed=True))
    action = action_of(query.get("action", ""))
    visit.account.require(action.needs)
    found = list((await jobs.documents_of(visit.services, ids, visit.tenant)).values())
    fitting = [job for job in found if job.state in bulk.ACTIONS[action.name]]
    return await visit.show(
        "chosen.html",
        action=action,
        fitting=fitting,
        fitting_states=by_state(fitting),
        others=by_state(job for job in found if job not in fitting),
        missing=len(ids) - len(found),
        back=back,
        section="jobs",
    )


@routes.post("/ui/chosen", Scope.JOBS_WRITE, "Do it to the chosen jobs", MOVED, documented=False)
async def do_to_chosen(visit: Visit) -> Response:
    form = await visit.form()
    back = form.back(JOBS)
    action = action_of(form.text("action"))
    visit.account.require(action.needs)
    done, asked, refused = 0, 0, 0
    do = _ONE[action.name]
    for job_id in _ids(form.all("job")):
        try:
            job = await do(visit, job_id)
        except ForemanError as problem:
            # It ended, or was removed, since it was chosen. Anything else is no matter of one job.
            if problem.status not in {404, 409}:
                raise
            refused += 1
        else:
            asked += job is not None and job.state in LIVE and action.name == "cancel"
            done += 1
    details = []
    if asked:
        details.append(f"{counted(asked, 'worker was', 'workers were')} asked to stop.")
    if refused:
        details.append(
            f"{counted(refused, 'job was', 'jobs were')} left alone: changed or removed meanwhile."
        )
    text = f"{counted(done, 'job')} {action.done}."
    return visit.go(back, Said(text, " ".join(details), failed=not done))


def _ids(given: list[str]) -> list[str]:
    return [each for each in dict.fromkeys(given) if is_id(each)][:MAX_CHOSEN]


async def _cancel(visit: Page, job_id: str) -> Job:
    return (await jobs.cancel(visit.services, visit.tenant, job_id, jobs.CancelRequest())).document


async def _retry(visit: Page, job_id: str) -> Job:
    return await jobs.retry(visit.services, visit.tenant, job_id)


async def _dismiss(visit: Page, job_id: str) -> Job:
    return await dead_letters.dismiss(visit.services, visit.tenant, job_id)


async def _delete(visit: Page, job_id: str) -> None:
    await jobs.delete(visit.services, visit.tenant, job_id)


_ONE: dict[BulkAction, Callable[[Page, str], Awaitable[Job | None]]] = {
    "cancel": _cancel,
    "retry": _retry,
    "dismiss": _dismiss,
    "delete": _delete,
}


# -- all that match a filter -------------------------------------------------------------------------------


def _asked(pairs: list[Pair]) -> Asked:
    """A filter that is not understood is refused: left out, it would mean more jobs."""
    asked = job_filter.parse(pairs, datetime.now(UTC), OWN)
    if asked.problems:
        raise InvalidRequest(" ".join(asked.problems))
    if "q" in dict(asked.pairs):
        raise InvalidRequest("A search is not a filter: say which kind, model or metadata is meant.")
    return asked


@routes.get(
    f"{PATH}/new", Scope.ADMIN_WRITE, "What would be done to all jobs that match", PAGE, documented=False
)
async def new_page(visit: Visit) -> Response:
    query = visit.request.query_params
    action, asked = action_of(query.get("action", "")), _asked(query.multi_items())
    wanted = asked.filter
    count = bulk.Count({}, is_whole=True)
    if bulk.states_of(action.name, wanted):
        count = await bulk.count(visit.services.database, action.name, wanted, visit.tenant, COUNT_SECONDS)
    return await visit.show(
        "bulk_new.html",
        action=action,
        count=count,
        counted_states={state: count.by_state[state] for state in State if count.by_state.get(state)},
        pairs=pairs_of(wanted),
        matching=address(JOBS, pairs_of(wanted)),
        back=own_or(query.get("back", ""), JOBS),
        section="jobs",
    )


@routes.post(PATH, Scope.ADMIN_WRITE, "Do it to all jobs that match", MOVED, documented=False)
async def begin(visit: Visit) -> Response:
    form = await visit.form()
    action = action_of(form.text("action"))
    wanted = api.BulkRequest(filter=document_of(_asked(form.pairs).filter))
    try:
        begun = await api.run_bulk(visit.services, visit.tenant, action.name, wanted, None)
    except InvalidRequest as problem:
        return visit.failed(form.back(JOBS), problem)
    operation = cast(BulkOperation, begun.document)
    return visit.go(f"{PATH}/{operation.operation_id}")


@routes.get(PATH, Scope.ADMIN_READ, "Bulk operations", PAGE, documented=False)
async def list_page(visit: Visit) -> Response:
    found = await api.list_operations(visit.services, visit.tenant)
    return await visit.show(
        "bulk_operations.html",
        operations=[_shown(each) for each in found.operations],
        section="jobs",
    )


async def _operation(visit: Visit, operation_id: str) -> bulk.Operation:
    return await api.existing_operation(visit.services, visit.tenant, operation_id)


Operation = Depends(_operation)


@routes.get(f"{PATH}/{{operation_id}}", Scope.ADMIN_READ, "A bulk operation", PAGE, documented=False)
async def operation_page(visit: Visit, operation: bulk.Operation = Operation) -> Response:
    return await visit.show("bulk_operation.html", **_shown(await api.get(operation)), section="jobs")


@routes.post(f"{PATH}/{{operation_id}}/stop", Scope.ADMIN_WRITE, "Stop it", MOVED, documented=False)
async def stop(visit: Visit, operation: bulk.Operation = Operation) -> Response:
    await visit.form()
    back = f"{PATH}/{operation.id}"
    try:
        await api.stop(visit.services, visit.tenant, operation)
    except ForemanError as problem:
        return visit.failed(back, problem)
    return visit.go(back, Said("Stopped.", "What was done stays done."))


def _shown(operation: BulkOperation) -> dict[str, Any]:
    wanted = api.filter_of(operation.filter)
    return {
        "operation": operation,
        "action": ACTIONS[operation.action],
        "pairs": pairs_of(wanted),
        "matching": address(JOBS, pairs_of(wanted)),
    }
