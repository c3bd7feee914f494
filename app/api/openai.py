"""/v1: what an OpenAI client calls."""

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from app.api import surfaces
from app.api.inference import OPENAI_ERRORS, AnyDocument, asks
from app.api.ollama import inventories
from app.api.parameters import Server
from app.api.routes import Reply, Routes
from app.dialects import TARGET_DIALECTS
from app.identity.scopes import Scope
from app.targets.inventory import merged_models, model_entry

DIALECT = TARGET_DIALECTS["openai"]
routes = Routes(DIALECT.name, OPENAI_ERRORS)


asks(routes, DIALECT, DIALECT.paths["chat"], "chat", "Chat, as OpenAI does")
asks(routes, DIALECT, DIALECT.paths["generate"], "generate", "Complete, as OpenAI does")
asks(routes, DIALECT, DIALECT.paths["embed"], "embed", "Embed, as OpenAI does")


@routes.get("/v1/models", Scope.JOBS_READ, "The models of all targets", "The models, as OpenAI lists them")
async def models(server: Server) -> AnyDocument:
    return merged_models(inventories(server), DIALECT)


@routes.get(
    "/v1/models/{model:path}",
    Scope.JOBS_READ,
    "One model",
    Reply("The model, as OpenAI shows it", AnyDocument),
    errors=(404,),
)
async def model(server: Server, model: Annotated[str, Path()]) -> AnyDocument | Response:
    found = model_entry(inventories(server), model, DIALECT)
    return surfaces.unknown_model(DIALECT, model) if found is None else {**found, "id": model}
