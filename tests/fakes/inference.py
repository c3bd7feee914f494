"""Requests that need a model: read, admitted, loaded for, answered; or struck by a fault."""

import asyncio
import base64
import struct
from dataclasses import dataclass
from typing import Any

from tests.fakes import asks, inventory
from tests.fakes.answers import Ask, compose, count_tokens, embedding
from tests.fakes.asks import Rejected
from tests.fakes.config import Config, Fault, Stats
from tests.fakes.http import Exchange
from tests.fakes.runners import Runners, ServerBusy, parse_keep_alive
from tests.fakes.surfaces import OllamaSurface, OpenAISurface, Surface, Timing, pieces
from tests.patience import pretend_to_work

ENDPOINTS = {
    "/api/chat": "chat",
    "/api/generate": "generate",
    "/api/embed": "embed",
    "/api/embeddings": "embed",
    "/v1/chat/completions": "chat",
    "/v1/completions": "generate",
    "/v1/embeddings": "embed",
}
_READERS = {
    "/api/chat": asks.ollama_chat,
    "/api/generate": asks.ollama_generate,
    "/v1/chat/completions": asks.openai_chat,
    "/v1/completions": asks.openai_completion,
}
_GARBAGE = b"<html><body>502 Bad Gateway</body></html>\n"


class Struck(Exception):
    """A fault has ended this exchange."""


@dataclass
class Call:
    """A request that has been read. Without an `ask` it only loads the model, or embeds."""

    kind: str
    body: dict[str, Any]
    surface: Surface
    model: str
    options: dict[str, Any]
    keep_alive: float
    ask: Ask | None
    timing: Timing

    @property
    def empty(self) -> bool:
        """Only to load, or with a keep_alive of zero to unload, the model. Not a thing of /v1."""
        if isinstance(self.surface, OpenAISurface):
            return False
        return not any(self.body.get(field) for field in ("messages", "prompt", "input"))


class Inference:
    def __init__(self, config: Config, stats: Stats, runners: Runners) -> None:
        self._config = config
        self._stats = stats
        self._runners = runners

    async def infer(self, exchange: Exchange) -> None:
        self._stats.started += 1
        surface = surface_of(exchange.path, {})
        try:
            body = asks.parse_body(exchange.body)
            surface = surface_of(exchange.path, body)
            await self._run(exchange, self._read(exchange, body, surface))
            self._stats.finished += 1
        except Rejected as rejected:
            self._stats.failed += 1
            await exchange.respond_json(rejected.status, surface.error(rejected.status, rejected.message))
        except ServerBusy as busy:
            self._stats.failed += 1
            await exchange.respond_json(503, surface.error(503, str(busy)))
        except Struck:
            self._stats.failed += 1
        except asyncio.CancelledError:
            self._stats.aborted += 1
            self._stats.note("aborted", path=exchange.path)
            raise

    def _read(self, exchange: Exchange, body: dict[str, Any], surface: Surface) -> Call:
        timing = Timing(started=Timing.now())
        if not body.get("model"):
            raise Rejected(400, "model is required")
        model = inventory.existing(self._config, body["model"])
        try:
            keep_alive = parse_keep_alive(body.get("keep_alive"), self._config.keep_alive_seconds)
        except ValueError as error:
            raise Rejected(400, str(error)) from None
        kind = ENDPOINTS[exchange.path]
        name = inventory.full_name(model["name"])
        call = Call(kind, body, surface, name, asks.options_of(body), keep_alive, None, timing)
        if kind != "embed":
            call.ask = None if call.empty else _READERS[exchange.path](body)
            _check_capabilities(call, inventory.capabilities(model))
        return call

    async def _run(self, exchange: Exchange, call: Call) -> None:
        unloads = call.empty and call.keep_alive == 0 and call.kind != "embed"
        what = "unload" if unloads else "load" if call.empty else call.kind
        self._stats.note(what, path=exchange.path, model=call.model, options=call.options)
        if unloads and isinstance(call.surface, OllamaSurface):
            self._runners.unload(call.model)
            await exchange.respond_json(200, call.surface.empty("unload"))
            return
        fault = None if call.empty else self._config.fault(exchange.path, call.body["model"])

        async def on_load() -> None:
            load_fault = self._config.fault(exchange.path, call.body["model"], "load")
            if load_fault is not None:
                await self.strike(load_fault, exchange, call.surface)

        async with self._runners.use(call.model, call.options, call.keep_alive, on_load):
            call.timing.loaded = Timing.now()
            if call.kind == "embed":
                await self._embed(exchange, call, fault)
            elif call.ask is not None:
                await self._say(exchange, call, call.ask, fault)
            elif isinstance(call.surface, OllamaSurface):
                await exchange.respond_json(200, call.surface.empty("load"))

    async def _say(self, exchange: Exchange, call: Call, ask: Ask, fault: Fault | None) -> None:
        surface = call.surface
        stream = call.body.get("stream", isinstance(surface, OllamaSurface)) is not False
        answer = compose(ask, self._config)
        await pretend_to_work(self._config.prefill_seconds)
        call.timing.prompt_read = Timing.now()
        said = pieces(answer)
        for position, piece in enumerate(said):
            if fault is not None and fault.after == position:
                await self.strike(fault, exchange, surface)
            # Even no time at all lets the other streams have their turn.
            await pretend_to_work(self._config.token_seconds)
            if stream:
                await _write(exchange, surface, surface.piece(piece))
        if fault is not None and fault.after >= len(said):
            await self.strike(fault, exchange, surface)
        if not stream:
            await exchange.respond_json(200, surface.whole(answer, call.timing))
            return
        for data in surface.ending(answer, call.timing):
            await _write(exchange, surface, data)
        await exchange.end()

    async def _embed(self, exchange: Exchange, call: Call, fault: Fault | None) -> None:
        if fault is not None:
            await self.strike(fault, exchange, call.surface)
        body = call.body
        legacy = exchange.path == "/api/embeddings"
        inputs = asks.embed_inputs(body.get("prompt" if legacy else "input"))
        dimensions = min(body.get("dimensions") or self._config.dimensions, self._config.dimensions)
        vectors = [embedding(text, dimensions) for text in inputs]
        await pretend_to_work(self._config.prefill_seconds)
        tokens = count_tokens(*inputs)
        if legacy:
            await exchange.respond_json(200, {"embedding": vectors[0] if vectors else []})
        elif isinstance(call.surface, OpenAISurface):
            if not inputs:
                raise Rejected(400, "invalid input")
            await exchange.respond_json(200, _embedding_list(body, vectors, tokens))
        else:
            figures = {
                "total_duration": Timing.now() - call.timing.started,
                "load_duration": call.timing.loaded - call.timing.started,
                "prompt_eval_count": tokens,
            }
            whole = {"model": body["model"], "embeddings": vectors}
            await exchange.respond_json(200, whole | figures if inputs else whole)

    async def strike(self, fault: Fault, exchange: Exchange, surface: Surface) -> None:
        """Never returns: the exchange is answered, cut or left hanging."""
        self._stats.note("fault", kind=fault.kind, path=exchange.path)
        match fault.kind:
            case "hang":
                await asyncio.Event().wait()
            case "cut":
                exchange.cut()
            case "busy" if not exchange.begun:
                raise ServerBusy
            case "error" if not exchange.begun:
                document = surface.error(fault.status, fault.message)
                inner = document["error"] if isinstance(document["error"], dict) else document
                inner |= fault.fields
                wanted = [("Retry-After", fault.retry_after)] if fault.retry_after else []
                await exchange.respond_json(fault.status, document, *wanted)
            case "error" | "busy":
                await exchange.write(surface.in_band_error(fault.message))
                await exchange.end()
            case "truncate":
                await _write(exchange, surface, b"")
                await exchange.end()
            case "garbage":
                await _write(exchange, surface, _GARBAGE)
                await exchange.end()
        raise Struck


def surface_of(path: str, body: dict[str, Any]) -> Surface:
    kind = ENDPOINTS.get(path, "chat")
    model = str(body.get("model") or "")
    if path.startswith("/v1/"):
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return OpenAISurface(kind, model, usage)
    return OllamaSurface(kind, model, raw=bool(body.get("raw")))


async def _write(exchange: Exchange, surface: Surface, data: bytes) -> None:
    if not exchange.begun:
        await exchange.begin(surface.content_type)
    if data:
        await exchange.write(data)


def _check_capabilities(call: Call, can: list[str]) -> None:
    body, ask = call.body, call.ask
    if "completion" not in can:
        raise Rejected(400, f'"{body["model"]}" does not support {call.kind}')
    if ask is None:
        return
    if ask.tools and "tools" not in can:
        raise Rejected(400, f"registry.ollama.ai/library/{body['model']} does not support tools")
    unsaid = body.get("think") is None and not body.get("reasoning_effort") and not body.get("reasoning")
    if "thinking" in can and unsaid:
        ask.think = True
    if ask.think and "thinking" not in can:
        raise Rejected(400, f'"{body["model"]}" does not support thinking')


def _embedding_list(body: dict[str, Any], vectors: list[list[float]], tokens: int) -> dict[str, Any]:
    def encoded(vector: list[float]) -> Any:
        if body.get("encoding_format") != "base64":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

    data = [{"object": "embedding", "index": i, "embedding": encoded(v)} for i, v in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}
