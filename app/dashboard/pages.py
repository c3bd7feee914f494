"""All pages, in the order in which the framework looks for them."""

from app.api.routes import Route
from app.dashboard import (
    assets,
    keys,
    nudges,
    overview,
    queues,
    reference,
    schedules,
    signing_in,
    targets,
    workers,
)

routes: list[Route] = [
    *assets.routes,
    *signing_in.routes,
    *nudges.routes,
    *overview.routes,
    *workers.routes,
    *queues.routes,
    *schedules.routes,
    *targets.routes,
    *keys.routes,
    *reference.routes,
]
