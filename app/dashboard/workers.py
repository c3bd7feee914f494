"""/ui/workers: who is about, what each claims and has at the moment, and what nobody claims."""

from typing import Annotated

from fastapi import Depends
from starlette.responses import Response

from app.api import workers
from app.api.operator_documents import Worker
from app.api.parameters import KnownFilters
from app.api.routes import Reply, Routes
from app.dashboard.attention import unclaimed
from app.dashboard.page import Visit
from app.engine.claimers import ANY_QUEUE
from app.identity.scopes import Scope
from app.store import read
from app.store.workers import MOST_LISTED

routes = Routes("dashboard")

# More than these are shown on being asked for.
MOST_SHOWN = 100
EXAMPLE = """\
from foreman_client import Worker
worker = Worker("{server}"{key})
@worker.task("{kind}")
async def run(payload, job): return {{"seen": payload}}
worker.run()"""


@routes.get(
    "/ui/workers",
    Scope.ADMIN_READ,
    "Workers",
    Reply("The page", str, media_type="text/html"),
    documented=False,
)
async def workers_page(
    visit: Visit, _known: Annotated[None, Depends(KnownFilters())], all: str | None = None
) -> Response:
    found = sorted((await workers.workers(visit.services, visit.tenant)).workers, key=_order)
    shown = found if all is not None else found[:MOST_SHOWN]
    ids = [job_id for each in shown for job_id in each.job_ids]
    jobs = {each.id: each for each in await read.get_summaries(visit.services.database, ids, visit.tenant)}
    waiting = await unclaimed(visit.services, await visit.services.queues.census.take(), visit.tenant)
    return await visit.show(
        "workers.html",
        workers=shown,
        total=len(found),
        most=MOST_LISTED,
        about=sum(each.alive or each.running > 0 for each in found),
        running=sum(each.running for each in found),
        jobs=jobs,
        any_queue=ANY_QUEUE,
        unclaimed=waiting,
        example=EXAMPLE.format(
            server=str(visit.request.base_url).rstrip("/"),
            key="" if visit.services.authenticator is None else ', api_key="fmn_…"',
            kind=waiting[0].kind if waiting else "greet",
        ),
    )


def _order(worker: Worker) -> tuple[bool, str]:
    """By name, so that nothing moves while it is read; those that are gone behind the others."""
    return not (worker.alive or worker.running), worker.name
