"""/jobs/{id}/family: what a job belongs to and what belongs to it, what it waits for, and what for it."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from app.api.job_parameters import JobIdInPath
from app.api.parameters import Server, Tenant
from app.api.routes import Routes
from app.api.services import Services
from app.errors import NotFound
from app.identity.scopes import Scope
from app.jobs.shapes import Count, JobId
from app.jobs.states import State
from app.store import family

routes = Routes("jobs")

# How many of each sort are named.
MAX_NAMED = 20


class Relative(msgspec.Struct, kw_only=True):
    job_id: JobId
    state: Annotated[State | None, Meta(description="null: it is not there any more.")]
    kind: str | None
    model: str | None


class Relatives(msgspec.Struct, kw_only=True):
    jobs: Annotated[
        list[Relative],
        Meta(description=f"Up to {MAX_NAMED}; of children those first that failed or have not ended."),
    ]
    total: Annotated[Count, Meta(description=f"Counted up to {family.MAX_COUNTED:,}.")]


class Children(Relatives, kw_only=True):
    states: Annotated[dict[str, int], Meta(description="How many are in which state.")]


class Family(msgspec.Struct, kw_only=True):
    """The jobs that have to do with one."""

    parent: Relative | None
    children: Children
    depends_on: Annotated[Relatives, Meta(description="What it was submitted to wait for.")]
    dependents: Annotated[Relatives, Meta(description="What still waits for it.")]


@routes.get(
    "/jobs/{job_id}/family",
    Scope.JOBS_READ,
    "The parent and children of a job, what it depends on and what depends on it",
    "Its relatives",
    errors=(404,),
)
async def of_job(server: Server, tenant: Tenant, job_id: JobIdInPath) -> Family:
    member = await family.get(server.database, job_id, tenant)
    if member is None:
        raise NotFound("There is no such job.")
    children = await family.children(server.database, job_id, tenant, MAX_NAMED)
    parents = [] if member.parent_id is None else [member.parent_id]
    parent = (await _named(server, parents, tenant)).jobs
    return Family(
        parent=parent[0] if parent else None,
        children=Children(
            jobs=[_relative(each) for each in children.jobs], total=children.total, states=children.states
        ),
        depends_on=await _named(server, await family.depends_on(server.database, job_id), tenant),
        dependents=await _named(server, await family.dependents(server.database, job_id), tenant),
    )


async def _named(services: Services, job_ids: Sequence[str], tenant: str) -> Relatives:
    """These jobs in their order, those that are gone among them."""
    shown = job_ids[:MAX_NAMED]
    found = {each.id: each for each in await family.named(services.database, shown, tenant)}
    jobs = [
        _relative(found[each]) if each in found else Relative(job_id=each, state=None, kind=None, model=None)
        for each in shown
    ]
    return Relatives(jobs=jobs, total=len(job_ids))


def _relative(job: family.Relative) -> Relative:
    return Relative(job_id=job.id, state=State(job.state), kind=job.kind, model=job.model)
