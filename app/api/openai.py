"""/v1: what an OpenAI client calls."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api import describe_llm as describe
from app.api import surfaces
from app.api.direct import direct_router, json_response
from app.api.house import house_of
from app.api.ollama import inventories
from app.api.passthrough import answer
from app.dialects import DIALECTS
from app.targets.inventory import merged_models, model_entry

DIALECT = DIALECTS["openai"]
router = direct_router(DIALECT.name)


@router.post("/v1/chat/completions", **describe.CHAT_COMPLETIONS)
async def chat_completions(request: Request) -> Response:
    return await answer(request, "chat", DIALECT)


@router.post("/v1/completions", **describe.COMPLETIONS)
async def completions(request: Request) -> Response:
    return await answer(request, "generate", DIALECT)


@router.post("/v1/embeddings", **describe.OPENAI_EMBEDDINGS)
async def embeddings(request: Request) -> Response:
    return await answer(request, "embed", DIALECT)


@router.get("/v1/models", **describe.MODELS)
async def models(request: Request) -> Response:
    return json_response(msgspec.json.encode(merged_models(inventories(house_of(request)), DIALECT)))


@router.get("/v1/models/{model:path}", **describe.MODEL)
async def model(request: Request) -> Response:
    name = request.path_params["model"]
    found = model_entry(inventories(house_of(request)), name, DIALECT)
    if found is None:
        return surfaces.unknown_model(DIALECT, name)
    return json_response(msgspec.json.encode({**found, "id": name}))


@router.api_route(
    "/v1/{rest:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
)
async def nothing(request: Request) -> Response:
    return surfaces.error_response(
        DIALECT, 404, f"{request.method} {request.url.path} is not offered here", code="unknown_url"
    )
