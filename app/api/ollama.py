"""/api and /: what an Ollama client calls. Nothing that changes a target's models is reachable."""

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from app.api import surfaces
from app.api.direct import read_body
from app.api.inference import OLLAMA_ERRORS, AnyDocument, asks
from app.api.parameters import Server
from app.api.routes import Access, Content, Reply, Routes
from app.api.services import Services
from app.dialects import TARGET_DIALECTS
from app.dialects.framing import parse_frame
from app.dialects.ollama import shown_model
from app.dialects.shapes import Frame, GarbledAnswer
from app.errors import ForemanError
from app.identity.scopes import Scope
from app.loops.off_loop import off_loop
from app.outbound.errors import OutboundError
from app.targets.inventory import ECHO_INVENTORY, Inventory, merged_models, model_entry, model_facts

DIALECT = TARGET_DIALECTS["ollama"]
routes = Routes(DIALECT.name, OLLAMA_ERRORS)
# What is said to clients that ask, when no target is an Ollama: the version whose wire is spoken here.
OLLAMA_VERSION = "0.33.0"
MAX_SHOWN_BYTES = 8 * 1024 * 1024
SHOW_SECONDS = 10.0


def inventories(services: Services) -> list[Inventory]:
    """What all targets have; the built-in echo while there is none."""
    return [ECHO_INVENTORY] if services.targets.is_empty else services.targets.inventories


asks(routes, DIALECT, DIALECT.paths["chat"], "chat", "Chat, as Ollama does")
asks(routes, DIALECT, DIALECT.paths["generate"], "generate", "Generate, as Ollama does")
asks(routes, DIALECT, DIALECT.paths["embed"], "embed", "Embed, as Ollama does")
asks(routes, DIALECT, "/api/embeddings", "embed", "Embed one prompt, as Ollama used to")


@routes.get(
    "/",
    Access.OPEN,
    "What Ollama answers; browsers are led to the dashboard",
    {
        200: Reply("Ollama is running", str, media_type="text/plain"),
        307: Reply("For browsers: the dashboard"),
    },
    also=("HEAD",),
)
async def root(request: Request) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return Response(status_code=307, headers={"location": "/ui"})
    return Response("Ollama is running", media_type="text/plain")


@routes.get(
    "/api/version", Scope.JOBS_READ, "The Ollama version that is spoken here", "The version", also=("HEAD",)
)
async def version(server: Server) -> AnyDocument:
    found = next((each.version for each in inventories(server) if each.version), None)
    return {"version": found or OLLAMA_VERSION}


@routes.get(
    "/api/tags",
    Scope.JOBS_READ,
    "The models of all targets",
    "The models, as Ollama lists them",
    also=("HEAD",),
)
async def tags(server: Server) -> AnyDocument:
    return merged_models(inventories(server), DIALECT)


@routes.get("/api/ps", Scope.JOBS_READ, "The models that are resident", "The models, as Ollama lists them")
async def running(server: Server) -> AnyDocument:
    return {"models": await server.targets.running()}


class ShowRequest(msgspec.Struct):
    model: str = ""
    name: str = ""
    verbose: bool | UnsetType = UNSET


_decode_show = msgspec.json.Decoder(ShowRequest).decode


@routes.post(
    "/api/show",
    Scope.JOBS_READ,
    "What is known of a model",
    Reply("As Ollama shows it", AnyDocument),
    errors=(400, 404, 413),
    request=Content(ShowRequest),
)
async def show(request: Request, server: Server) -> AnyDocument | Response:
    try:
        body = await read_body(request)
        asked = await off_loop(len(body), _decode_show, body)
    except ForemanError as problem:
        return surfaces.refusal(DIALECT, problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        return surfaces.error_response(DIALECT, 400, f"invalid request: {problem}")
    model = asked.model or asked.name
    if not model:
        return surfaces.error_response(DIALECT, 400, "model is required")
    found = await _ask_target(server, model, body) or _known(server, model)
    return found or surfaces.unknown_model(DIALECT, model)


async def _ask_target(services: Services, model: str, body: bytes) -> Frame | None:
    """From the target itself; when it is asleep, what it last said."""
    serving = await services.targets.serving_surely(model)
    for target in serving.ready:
        if target.dialect is not DIALECT:
            continue
        try:
            async with target.request("POST", "/api/show", body, SHOW_SECONDS) as shown_by_target:
                said = parse_frame(await shown_by_target.read(MAX_SHOWN_BYTES))
                if shown_by_target.status == 200:
                    target.shown[model] = said
                    return said
        except (OutboundError, GarbledAnswer):
            target.out_of_date()
    return next((t.shown[model] for t in services.targets.targets if model in t.shown), None)


def _known(services: Services, model: str) -> Frame | None:
    """As far as the inventory alone can tell."""
    known = inventories(services)
    entry = model_entry(known, model, DIALECT)
    return None if entry is None else shown_model(entry, model_facts(known, model))
