"""All pages, in the order in which the framework looks for them."""

from app.api.routes import Route
from app.dashboard import (
    assets,
    bulk,
    dead_letters,
    job,
    job_actions,
    jobs,
    keys,
    nudges,
    overview,
    queues,
    reference,
    schedules,
    signing_in,
    submit,
    targets,
    usage,
    workers,
)

routes: list[Route] = [
    *assets.routes,
    *signing_in.routes,
    *nudges.routes,
    *overview.routes,
    *submit.routes,
    *jobs.routes,
    *bulk.routes,
    *job.routes,
    *job_actions.routes,
    *dead_letters.routes,
    *queues.routes,
    *targets.routes,
    *workers.routes,
    *schedules.routes,
    *keys.routes,
    *usage.routes,
    *reference.routes,
]
