"""Ollama: lines of JSON on /api, where models are loaded and unloaded on request."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.dialects.neutral import Embeddings, Message, Part, Request
from app.dialects.ollama_answers import (
    OllamaFold,
    OllamaMeter,
    OllamaReader,
    OllamaWatch,
    OllamaWriter,
    ollama_time,
    part_of,
    saying,
    write_call,
)
from app.dialects.protocol import Body, Dialect, Loading, Question, ReplyForm, Told
from app.dialects.runner import RunnerOptions, runner_options
from app.dialects.shapes import (
    Frame,
    GarbledAnswer,
    Kind,
    UntranslatableRequest,
    as_count,
    as_dict,
    as_frames,
    as_list,
    as_text,
    is_legacy_embeddings,
    without_nulls,
)
from app.dialects.toolcalls import read_call

_NO_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": None,
    "parameter_size": "",
    "quantization_level": "",
}

# The first characters of a picture's base64 give away what it is.
_SIGNATURES = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}


class OllamaBody(Body, frozen=True, gc=False):
    options: RunnerOptions | None = None

    @property
    def runner_options(self) -> RunnerOptions | None:
        return self.options


class Ollama(Dialect):
    name = "ollama"
    path_prefix = "/api/"
    sse = False
    body_shape = OllamaBody
    inventory_questions = (
        Question("/api/version", needed=False, lasting=True),
        Question("/api/tags"),
        Question("/api/ps", needed=False),
    )
    tells_residents = True
    reader = OllamaReader
    writer = OllamaWriter
    watch = OllamaWatch
    fold = OllamaFold
    meter = OllamaMeter

    def asks_to_stream(self, kind: Kind, stream: bool | None) -> bool:
        return kind != "embed" and stream is not False

    def endpoint(self, kind: Kind, body: Mapping[str, Any]) -> str:
        if kind == "embed":
            return "/api/embeddings" if is_legacy_embeddings(body) else "/api/embed"
        return f"/api/{kind}"

    def read_request(self, kind: Kind, body: Frame) -> Request:
        if kind == "embed":
            text = body.get("prompt") if is_legacy_embeddings(body) else body.get("input")
            return Request(model=body.get("model"), input=text, dimensions=body.get("dimensions"))
        wants_logprobs = {"logprobs": True, "top_logprobs": body.get("top_logprobs")}
        request = Request(
            model=body.get("model"),
            options=as_dict(body.get("options")),
            format=body.get("format"),
            think=body.get("think"),
            logprobs=without_nulls(wants_logprobs) if body.get("logprobs") else {},
            stream=body.get("stream") is not False,
        )
        if kind == "chat":
            request.messages = [_read_message(as_dict(each)) for each in as_list(body.get("messages"))]
            request.tools = as_list(body.get("tools"))
        else:
            _read_prompt(body, request)
        return request

    def write_request(self, kind: Kind, request: Request) -> Frame:
        body: Frame = {"model": request.model}
        if kind == "embed":
            return body | _write_input(request)
        if request.messages is None:
            body |= {"prompt": request.prompt, **without_nulls({"suffix": request.suffix})}
        else:
            body |= {"messages": [_write_message(each) for each in request.messages], **request.logprobs}
        body |= {"tools": request.tools} if request.tools else {}
        body |= {"format": request.format} if request.format else {}
        body |= without_nulls({"think": request.think})
        return body | request.extras | {"options": request.options, "stream": request.stream}

    def streaming_request(self, kind: Kind, body: Frame) -> Frame:
        return body if kind == "embed" else {**body, "stream": True}

    def only_loads(self, kind: Kind, body: Mapping[str, Any]) -> Loading | None:
        if kind == "embed" or body.get("messages" if kind == "chat" else "prompt"):
            return None
        return "unload" if "keep_alive" in body and _is_zero(body["keep_alive"]) else "load"

    def loading_answer(self, kind: Kind, model: str, at: datetime, reason: Loading) -> Frame:
        return {**saying(kind, model, at, ""), "done": True, "done_reason": reason}

    def load_request(self, kind: Kind, body: Mapping[str, Any]) -> Frame:
        """For the job's own endpoint. A `keep_alive` of zero stays behind: alone it would unload."""
        load: Frame = {"model": body.get("model"), **_nothing_to_say(kind, body)}
        options = runner_options(as_dict(body.get("options")))
        if options:
            load["options"] = options
        if body.get("keep_alive") is not None and not _is_zero(body["keep_alive"]):
            load["keep_alive"] = body["keep_alive"]
        return load

    def part_of(self, kind: Kind, frame: Frame) -> Part | None:
        return part_of(kind, frame)

    def unsaid(self, kind: Kind, result: Frame) -> Part | None:
        if kind == "chat":
            return part_of(kind, {"message": {**as_dict(result.get("message")), "content": ""}})
        return part_of(kind, {**result, "response": ""})

    def check_embeddings(self, answer: Mapping[str, Any]) -> None:
        if not isinstance(answer.get("embeddings"), list) and not isinstance(answer.get("embedding"), list):
            raise GarbledAnswer("no embeddings", str(answer)[:500])

    def read_embeddings(self, answer: Mapping[str, Any]) -> Embeddings:
        vectors = [answer["embedding"]] if "embedding" in answer else as_list(answer.get("embeddings"))
        return Embeddings(vectors, as_count(answer.get("prompt_eval_count")))

    def write_embeddings(
        self, embeddings: Embeddings, model: str, total_duration: int, form: ReplyForm
    ) -> Frame:
        if form.legacy_embeddings:
            return {"embedding": embeddings.vectors[0] if embeddings.vectors else []}
        return {
            "model": model,
            "embeddings": embeddings.vectors,
            "total_duration": total_duration,
            "load_duration": 0,
            "prompt_eval_count": embeddings.tokens,
        }

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Frame:
        return {"error": message}

    def read_inventory(self, answers: Mapping[str, Frame | None]) -> Told:
        models = as_dict(answers["/api/tags"]).get("models")
        if not isinstance(models, list):
            raise GarbledAnswer("/api/tags answered no list of models")
        running = as_frames(as_dict(answers["/api/ps"]).get("models"))
        version = as_text(as_dict(answers["/api/version"]).get("version"))
        return Told(as_frames(models), running, version or None)

    def model_name(self, model: Frame) -> str:
        return as_text(model.get("model")) or as_text(model.get("name"))

    def model_created(self, model: Frame) -> int:
        try:
            return int(datetime.fromisoformat(as_text(model.get("modified_at"))).timestamp())
        except (ValueError, OverflowError):
            return 0

    def model_entry(self, name: str, created: int, own: Frame | None) -> Frame:
        if own is not None:
            return {"details": _NO_DETAILS, "modified_at": _moment(0), **own}
        entry: Frame = {"name": name, "model": name, "modified_at": _moment(created), "size": 0, "digest": ""}
        return entry | {"details": _NO_DETAILS}

    def models_list(self, entries: list[Frame]) -> Frame:
        return {"models": entries}


def _read_message(message: Frame) -> Message:
    return Message(
        as_text(message.get("role")) or "user",
        message.get("content"),
        images=[_image_url(image) for image in as_list(message.get("images"))],
        thinking=message.get("thinking"),
        calls=[read_call(call) for call in as_list(message.get("tool_calls"))],
        call_id=as_text(message.get("tool_call_id")),
        tool_name=as_text(message.get("tool_name")) or as_text(message.get("name")),
    )


def _read_prompt(body: Frame, request: Request) -> None:
    """Ollama puts the prompt through the chat template, so this is a chat unless it is `raw` or infilling."""
    for field in ("template", "context"):
        if body.get(field):
            raise UntranslatableRequest(f"{field} is not supported by this target")
    prompt = as_text(body.get("prompt"))
    images = as_list(body.get("images"))
    if body.get("raw") or body.get("suffix"):
        if images:
            raise UntranslatableRequest("images cannot be combined with raw or suffix on this target")
        request.prompt, request.suffix = prompt, body.get("suffix") or None
        return
    system = [Message("system", body["system"])] if body.get("system") else []
    request.messages = [*system, Message("user", prompt, [_image_url(image) for image in images])]


def _write_message(message: Message) -> Frame:
    body: Frame = {"role": message.role, "content": message.content or ""}
    if message.images:
        body["images"] = [_image_data(url) for url in message.images]
    if message.thinking:
        body["thinking"] = message.thinking
    if message.calls:
        body["tool_calls"] = [write_call(call) for call in message.calls]
    if message.role == "tool":
        body |= {"tool_name": message.tool_name} if message.tool_name else {}
        body |= {"tool_call_id": message.call_id} if message.call_id else {}
    return body


def _write_input(request: Request) -> Frame:
    text = request.input
    if not isinstance(text, str) and not (isinstance(text, list) and all(isinstance(t, str) for t in text)):
        raise UntranslatableRequest("invalid input: this target embeds a text or a list of texts")
    return {"input": text, **without_nulls({"dimensions": request.dimensions}), **request.extras}


def _nothing_to_say(kind: Kind, body: Mapping[str, Any]) -> Frame:
    match kind:
        case "chat":
            return {"messages": [], "stream": False}
        case "generate":
            return {"prompt": "", "stream": False}
        case "embed":
            return {"prompt": ""} if is_legacy_embeddings(body) else {"input": []}


def _moment(seconds: int) -> str:
    return ollama_time(datetime.fromtimestamp(seconds, UTC))


def _is_zero(keep_alive: Any) -> bool:
    if isinstance(keep_alive, str):
        digits = keep_alive.strip("+-0.hmsuµn ")
        return bool(keep_alive.strip()) and not digits and "0" in keep_alive
    return isinstance(keep_alive, int | float) and keep_alive == 0


def _image_url(image: Any) -> str:
    """A bare base64 picture as a data URI."""
    if not isinstance(image, str):
        raise UntranslatableRequest("invalid image input")
    if image.startswith("data:"):
        return image
    kind = next((name for prefix, name in _SIGNATURES.items() if image.startswith(prefix)), "png")
    return f"data:image/{kind};base64,{image}"


def _image_data(url: str) -> str:
    """The base64 out of a data URI; a link cannot be passed on to servers that fetch nothing."""
    header, comma, data = url.partition(",")
    if not comma or not header.startswith("data:") or not header.endswith(";base64"):
        raise UntranslatableRequest("invalid image input: only base64 data URIs are supported by this target")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UntranslatableRequest("invalid image input: not base64") from None
    return data
