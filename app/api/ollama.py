"""/api and /: what an Ollama client calls. Nothing that changes a target's models is reachable."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_llm as describe
from app.api import surfaces
from app.api.direct import direct_router, json_response, read_body
from app.api.house import House, house_of
from app.api.passthrough import answer
from app.dialects import DIALECTS, Frame, GarbledAnswer, parse_frame
from app.errors import ForemanError
from app.loops.off_loop import off_loop
from app.outbound import OutboundError
from app.targets.inventory import Inventory, merged_models, merged_running, model_entry
from app.targets.registry import ECHO_INVENTORY

DIALECT = DIALECTS["ollama"]
router = direct_router(DIALECT.name)
# What is said to clients that ask, when no target is an Ollama: the version whose wire is spoken here.
OLLAMA_VERSION = "0.33.0"
MAX_SHOWN_BYTES = 8 * 1024 * 1024
SHOW_SECONDS = 10.0


def inventories(house: House) -> list[Inventory]:
    """What all targets have; the built-in echo while there is none."""
    return [ECHO_INVENTORY] if house.targets.is_empty else house.targets.inventories


@router.post("/api/chat", **describe.CHAT)
async def chat(request: Request) -> Response:
    return await answer(request, "chat", DIALECT)


@router.post("/api/generate", **describe.GENERATE)
async def generate(request: Request) -> Response:
    return await answer(request, "generate", DIALECT)


@router.post("/api/embed", **describe.EMBED)
async def embed(request: Request) -> Response:
    return await answer(request, "embed", DIALECT)


@router.post("/api/embeddings", **describe.EMBEDDINGS)
async def embeddings(request: Request) -> Response:
    return await answer(request, "embed", DIALECT)


@router.head("/", include_in_schema=False)
@router.get("/", **describe.ROOT)
async def root(request: Request) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return Response(status_code=307, headers={"location": "/ui"})
    return Response("Ollama is running", media_type="text/plain")


@router.head("/api/version", include_in_schema=False)
@router.get("/api/version", **describe.VERSION)
async def version(request: Request) -> Response:
    found = next((each.version for each in inventories(house_of(request)) if each.version), None)
    return json_response(msgspec.json.encode({"version": found or OLLAMA_VERSION}))


@router.head("/api/tags", include_in_schema=False)
@router.get("/api/tags", **describe.TAGS)
async def tags(request: Request) -> Response:
    return json_response(msgspec.json.encode(merged_models(inventories(house_of(request)), DIALECT)))


@router.get("/api/ps", **describe.PS)
async def running(request: Request) -> Response:
    house = house_of(request)
    await house.targets.catch_up()
    return json_response(msgspec.json.encode({"models": merged_running(inventories(house))}))


class ShowRequest(msgspec.Struct):
    model: str = ""
    name: str = ""


_decode_show = msgspec.json.Decoder(ShowRequest).decode


@router.post("/api/show", **describe.SHOW)
async def show(request: Request) -> Response:
    house = house_of(request)
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
    found = await _ask_target(house, model, body) or _known(house, model)
    if found is None:
        return surfaces.unknown_model(DIALECT, model)
    return json_response(msgspec.json.encode(found))


async def _ask_target(house: House, model: str, body: bytes) -> Frame | None:
    """From the target itself; when it is asleep, what it last said."""
    serving = await house.targets.serving_surely(model)
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
    return next((t.shown[model] for t in house.targets.targets if model in t.shown), None)


def _known(house: House, model: str) -> Frame | None:
    """As far as the inventory alone can tell."""
    entry = model_entry(inventories(house), model, DIALECT)
    if entry is None:
        return None
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": entry["details"],
        "model_info": {},
        "capabilities": ["completion"],
        "modified_at": entry["modified_at"],
    }


@router.api_route(
    "/api/{rest:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
)
async def nothing(request: Request) -> Response:
    return surfaces.error_response(DIALECT, 404, f"{request.url.path} is not offered here")
