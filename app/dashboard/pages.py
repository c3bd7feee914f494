"""All pages, in the order in which the framework looks for them."""

from app.api.routes import Route
from app.dashboard import assets, keys, nudges, reference, signing_in, usage, webhooks, workers

routes: list[Route] = [
    *assets.routes,
    *signing_in.routes,
    *nudges.routes,
    *workers.routes,
    *webhooks.routes,
    *keys.routes,
    *usage.routes,
    *reference.routes,
]
