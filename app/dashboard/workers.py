"""/ui/workers: who is about, what each claims, and who has not been seen for a while."""

from starlette.responses import Response

from app.api import workers
from app.api.routes import Reply, Routes
from app.dashboard.page import Visit
from app.identity.scopes import Scope

routes = Routes("dashboard")


@routes.get(
    "/ui/workers",
    Scope.ADMIN_READ,
    "Workers",
    Reply("The page", str, media_type="text/html"),
    documented=False,
)
async def workers_page(visit: Visit) -> Response:
    found = await workers.workers(visit.services, visit.tenant)
    return await visit.show("workers.html", workers=found.workers)
