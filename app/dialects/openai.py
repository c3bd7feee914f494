"""OpenAI: server-sent events on /v1, as llama.cpp, vLLM and many others speak it too."""

import base64
import struct
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from app.dialects.facts import ModelFacts
from app.dialects.framing import SSE_DONE
from app.dialects.kept import FrameKeeper
from app.dialects.neutral import Message, Part, Request
from app.dialects.openai_answers import (
    CHUNKS,
    OpenAIFold,
    OpenAIReader,
    OpenAIWriter,
    completion_id,
    part_of,
    plain_text,
    write_call,
)
from app.dialects.protocol import Body, Question, TargetDialect, Told, is_model_name
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
    without_nulls,
)
from app.dialects.toolcalls import CallIds, arguments_text, read_call
from app.errors import InvalidRequest

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
# Ollama's own words that callers put into a body (`extra_body`) when they know what is behind it.
_EXTRAS = ("keep_alive", "truncate", "shift")
_EMBED_EXTRAS = ("truncate", "options", "keep_alive")
EFFORT_TO_THINK: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
# How the relatives of OpenAI call the length of the context in their lists of models: vLLM and SGLang;
# OpenRouter and Together; Groq; Mistral and LM Studio.
_CONTEXT_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length")
# And what a model can do, by Ollama's word for it.
_CAPABILITIES = {
    "tools": frozenset({"tools", "tool_use", "function_calling"}),
    "vision": frozenset({"vision", "image", "multimodal"}),
    "embedding": frozenset({"embedding", "embeddings"}),
}
# `developer` is the newer word for a system message, `function` the older one for a tool's.
_ROLES = {"developer": "system", "function": "tool"}


# Sampling stands at the top of a body, where Ollama keeps it in `options`. One name in both:
_SHARED_OPTIONS = ("temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty")

# Not OpenAI's own, but llama.cpp and its relatives take them under Ollama's names. Passed on rather than
# dropped: a sampler that was silently ignored is worse than a target that says it does not know the word.
LLAMA_OPTIONS = (
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
)

# What OpenAI documents as its defaults. Ollama's own differ, and its /v1 surface fills these in as well.
_DEFAULT_OPTIONS = {"temperature": 1.0, "top_p": 1.0}


class _Routing(msgspec.Struct, frozen=True, gc=False):
    """Without this, a body has no way to a target and back."""

    model: str = ""
    stream: msgspec.Raw = msgspec.Raw(b"null")


_read_routing = msgspec.json.Decoder(_Routing).decode


class OpenAI(TargetDialect):
    name = "openai"
    path_prefix = "/v1/"
    paths: ClassVar = {
        "chat": "/v1/chat/completions",
        "generate": "/v1/completions",
        "embed": "/v1/embeddings",
    }
    sse = True
    streams_unasked = False
    end_of_stream = SSE_DONE
    inventory_questions = (Question("/v1/models"),)
    embeddings_in = ("data",)
    keeps_envelopes = True
    streams_make_wholes = False
    reader = OpenAIReader
    writer = OpenAIWriter
    fold = OpenAIFold

    def read_body(self, kind: Kind, body: bytes) -> Body:
        try:
            return super().read_body(kind, body)
        except InvalidRequest as problem:
            # Whatever else is wrong is for the target to say: in its own words, and if it is wrong there.
            try:
                given = _read_routing(body)
            except msgspec.ValidationError:
                raise problem from None
            if not is_model_name(given.model):
                raise
            return Body(model=given.model, stream=bytes(given.stream) == b"true")

    def endpoint(self, kind: Kind, body: Mapping[str, Any]) -> str:
        if kind == "embed":
            return "/v1/embeddings"
        return "/v1/chat/completions" if kind == "chat" or "messages" in body else "/v1/completions"

    def read_request(self, kind: Kind, body: Frame) -> Request:
        request = Request(model=body.get("model"))
        if kind == "embed":
            request.input, request.dimensions = body.get("input"), body.get("dimensions")
            request.extras = without_nulls({name: body.get(name) for name in _EMBED_EXTRAS})
            return request
        request.extras = without_nulls({name: body.get(name) for name in _EXTRAS})
        request.options = _read_options(body)
        request.format = _read_format(as_dict(body.get("response_format")))
        request.think = _read_effort(body)
        request.stream = _read_stream(body.get("stream"))
        if kind == "chat":
            names: dict[str, str] = {}
            request.messages = [_read_message(each, names) for each in _read_messages(body.get("messages"))]
            request.tools = _chosen_tools(body)
            wanted = {"logprobs": True, "top_logprobs": body.get("top_logprobs")}
            request.logprobs = without_nulls(wanted) if body.get("logprobs") else {}
        else:
            request.prompt, request.suffix = _read_prompt(body.get("prompt")), body.get("suffix") or None
            request.logprobs = _read_token_lists(body.get("logprobs"))
        return request

    def write_request(self, kind: Kind, request: Request) -> Frame:
        body: Frame = {"model": request.model}
        if kind == "embed":
            dimensions = without_nulls({"dimensions": request.dimensions})
            return body | {"input": request.input, "encoding_format": "float", **dimensions}
        if request.messages is None:
            body |= {"prompt": request.prompt, **without_nulls({"suffix": request.suffix})}
            body |= {"logprobs": request.logprobs.get("top_logprobs") or 0} if request.logprobs else {}
        else:
            conversation = CallIds(request.messages)
            messages = [_write_message(message, conversation) for message in request.messages]
            body |= {"messages": messages, **request.logprobs}
            body |= _write_tools(request)
            body |= {} if request.think is None else {"reasoning_effort": _write_effort(request.think)}
        body |= _write_options(request.options)
        body |= {"response_format": _write_format(request)} if request.format else {}
        usage = {"stream_options": {"include_usage": True}} if request.stream else {}
        return body | {"stream": request.stream, **usage}

    def streaming_request(self, kind: Kind, body: Frame, own_name: str) -> Frame:
        if kind == "embed":
            return {**body, "model": own_name}
        stream_options = {**as_dict(body.get("stream_options")), "include_usage": True}
        return {**body, "model": own_name, "stream": True, "stream_options": stream_options}

    def count_request(self, request: Request, own_name: str) -> tuple[str, Frame]:
        """As llama.cpp has it; whoever has not says that there is no such path."""
        return "/v1/chat/completions/input_tokens", {**self.write_request("chat", request), "model": own_name}

    def read_count(self, answer: Frame) -> int | None:
        count = answer.get("input_tokens")
        return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None

    def own_request(self, body: Frame, own_name: str) -> Frame:
        return body if body.get("model") == own_name else {**body, "model": own_name}

    def check_whole(self, answer: Frame) -> None:
        if not isinstance(answer.get("choices"), list):
            raise GarbledAnswer("no choices", str(answer)[:500])

    def part_of(self, kind: Kind, frame: Frame) -> Part | None:
        return part_of(frame)

    def keeper(self, kind: Kind) -> FrameKeeper | None:
        return FrameKeeper(kind, CHUNKS)

    def plain_text(self, kind: Kind, frame: Frame) -> str | None:
        return plain_text(frame) if kind == "chat" else None

    def unsaid(self, kind: Kind, result: Frame) -> Part | None:
        choices = [as_dict(choice) for choice in as_list(result.get("choices"))]
        bare = [{**each, "message": {**as_dict(each.get("message")), "content": None}} for each in choices]
        return part_of({"choices": bare}) if kind == "chat" else None

    def identified(self, kind: Kind, response: Frame, answer_id: str, asked: Mapping[str, Any]) -> Frame:
        return response if kind == "embed" else {**response, "id": completion_id(kind, answer_id)}

    def read_embeddings(self, answer: Mapping[str, Any]) -> tuple[list[Any], int]:
        items = sorted(
            map(as_dict, as_list(answer.get("data"))), key=lambda item: as_count(item.get("index"))
        )
        counted = as_count(as_dict(answer.get("usage")).get("prompt_tokens"))
        return [_unpacked(item.get("embedding")) for item in items], counted

    def write_embeddings(
        self, vectors: list[Any], tokens: int, model: str, total_duration: int, asked: Mapping[str, Any]
    ) -> Frame:
        is_packed = as_text(asked.get("encoding_format")).lower() == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if is_packed else vector}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Frame:
        return error_body(status, message, param, code)

    def read_inventory(self, answers: Mapping[str, Frame | None]) -> Told:
        models = as_dict(answers["/v1/models"]).get("data")
        if not isinstance(models, list):
            raise GarbledAnswer("/v1/models answered no list of models")
        return as_frames(models), [], None

    def model_name(self, model: Frame) -> str:
        return as_text(model.get("id"))

    def model_created(self, model: Frame) -> int:
        created = model.get("created")
        return created if isinstance(created, int) and 0 <= created < 1 << 36 else 0

    def model_facts(self, model: Frame) -> ModelFacts:
        meta = as_dict(model.get("meta"))
        # Of several, the least is what can be sent: what it was trained for may be more.
        said = [as_count(meta.get("n_ctx")), *(as_count(model.get(name)) for name in _CONTEXT_LENGTHS)]
        told = [length for length in said if length] or [as_count(meta.get("n_ctx_train"))]
        return ModelFacts(
            architecture=as_text(model.get("arch")),
            context_length=min(told),
            parameter_count=as_count(meta.get("n_params")),
            embedding_length=as_count(meta.get("n_embd")),
            vocabulary_size=as_count(meta.get("n_vocab")),
            quantization=as_text(meta.get("ftype")) or as_text(model.get("quantization")),
            owner=as_text(model.get("owned_by")),
            capabilities=_capabilities(model),
        )

    def model_entry(self, name: str, created: int, own: Frame | None) -> Frame:
        foreign = {"id": name, "object": "model", "created": created, "owned_by": "library"}
        return foreign if own is None else own

    def models_list(self, entries: list[Frame]) -> Frame:
        return {"object": "list", "data": entries}


def _capabilities(model: Frame) -> tuple[str, ...]:
    told = model.get("capabilities")
    if isinstance(told, dict):
        told = [name for name, can in told.items() if can is True]
    kinds = as_dict(model.get("architecture"))
    words = {
        word
        for source in (
            told,
            kinds.get("input_modalities"),
            model.get("supported_parameters"),
            [model.get("type")],
        )
        for word in as_list(source)
        if isinstance(word, str)
    }
    found = [name for name, synonyms in _CAPABILITIES.items() if words & synonyms]
    return tuple(found) if "embedding" in found else ("completion", *found)


def error_body(status: int, message: str, param: str | None, code: str | None) -> Frame:
    """As all of OpenAI's surfaces say it."""
    fallback = "invalid_request_error" if 400 <= status < 500 else "api_error"
    kind = _ERROR_TYPES.get(status, fallback)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _read_stream(stream: Any) -> bool:
    if stream is not None and not isinstance(stream, bool):
        raise UntranslatableRequest("stream must be true or false", "stream")
    return stream is True


def _read_messages(messages: Any) -> list[Frame]:
    if not messages and (messages is None or isinstance(messages, list)):
        raise UntranslatableRequest("[] is too short - 'messages'", "messages")
    if not isinstance(messages, list) or len(as_frames(messages)) != len(messages):
        raise UntranslatableRequest("messages must be a list of objects", "messages")
    return messages


def _read_message(message: Frame, names: dict[str, str]) -> Message:
    role = as_text(message.get("role")) or "user"
    calls = [read_call(call) for call in as_list(message.get("tool_calls"))]
    names.update({call.id: call.name for call in calls})
    text, images = _read_content(message.get("content"))
    thinking = as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))
    call_id = as_text(message.get("tool_call_id"))
    tool_name = as_text(message.get("name")) or names.get(call_id, "")
    return Message(_ROLES.get(role, role), text, images, thinking, calls, call_id, tool_name)


def _read_content(content: Any) -> tuple[str, list[str]]:
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise UntranslatableRequest("invalid message content type")
    texts: list[str] = []
    images: list[str] = []
    for item in content:
        part = as_dict(item)
        match part.get("type"):
            case "text" | "refusal" as kind:
                texts.append(as_text(part.get(kind)))
            case "image_url":
                image = part.get("image_url")
                images.append(as_text(image.get("url") if isinstance(image, dict) else image))
            case other:
                raise UntranslatableRequest(f"content of type {other!r} is not supported by this target")
    return "\n".join(texts), images


def _write_message(message: Message, conversation: CallIds) -> Frame:
    body: Frame = {"role": message.role, "content": _write_content(message)}
    if message.calls:
        body["content"] = body["content"] or None
        body["tool_calls"] = [
            write_call(conversation.asked(call), call.name, arguments_text(call.arguments))
            for call in message.calls
        ]
    if message.role == "tool":
        body["tool_call_id"] = conversation.answered(message)
    if message.thinking:
        body["reasoning_content"] = message.thinking
    return body


def _write_content(message: Message) -> Any:
    if not message.images:
        return "" if message.content is None else message.content
    text = [{"type": "text", "text": message.content}] if message.content else []
    return [*text, *({"type": "image_url", "image_url": {"url": url}} for url in message.images)]


def _read_prompt(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if prompt is not None and not isinstance(prompt, str):
        raise UntranslatableRequest("prompt must be a single text on this target")
    return prompt or ""


def _read_token_lists(wanted: Any) -> Frame:
    """In the older completions `logprobs` is the number of the likeliest tokens, zero being one."""
    if wanted is None or wanted is False:
        return {}
    if wanted is True:
        return {"logprobs": True}
    if not isinstance(wanted, int) or wanted < 0:
        raise UntranslatableRequest("logprobs must be a number of tokens", "logprobs")
    return {"logprobs": True, **({"top_logprobs": wanted} if wanted else {})}


def _read_format(response_format: Frame) -> Any:
    match response_format.get("type"):
        case "json_object":
            return "json"
        case "json_schema":
            return as_dict(response_format.get("json_schema")).get("schema") or "json"
        case _:
            return None


def _write_format(request: Request) -> Frame:
    if isinstance(request.format, dict):
        details = {"name": "response", **request.format_details}
        return {"type": "json_schema", "json_schema": {**details, "schema": request.format}}
    return {"type": "json_object"}


def _write_tools(request: Request) -> Frame:
    if not request.tools:
        return {}
    choice = request.tool_choice
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    return without_nulls(
        {
            "tools": request.tools,
            "tool_choice": choice,
            "parallel_tool_calls": request.parallel_tool_calls,
        }
    )


def _read_effort(body: Frame) -> bool | str | None:
    think = body.get("think")
    if isinstance(think, bool | str):
        return think
    effort = as_dict(body.get("reasoning")).get("effort") or body.get("reasoning_effort")
    if not effort:
        return None
    if not isinstance(effort, str) or effort not in EFFORT_TO_THINK:
        raise UntranslatableRequest(
            f'invalid reasoning value: \'{effort}\' (must be "high", "medium", "low", or "none")'
        )
    return EFFORT_TO_THINK[effort]


def _write_effort(think: bool | str) -> str:
    if isinstance(think, str):
        return think
    return "medium" if think else "none"


def _write_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Ollama's `options` as top-level fields of an OpenAI body. Runner options have no counterpart."""
    given = without_nulls(options or {})
    sampling = {name: given[name] for name in (*_SHARED_OPTIONS, *LLAMA_OPTIONS) if name in given}
    limit = given.get("num_predict")
    # Zero and below mean "no limit" (-1) or "fill the context" (-2): OpenAI says that by saying nothing.
    if isinstance(limit, int | float) and limit > 0:
        sampling["max_tokens"] = int(limit)
    return sampling


def _read_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level fields of an OpenAI body as Ollama's `options`.

    An `options` object that a caller put into an OpenAI body (num_ctx, say) is taken as the base.
    """
    given = without_nulls(body)
    options: dict[str, Any] = {**_DEFAULT_OPTIONS, **without_nulls(as_dict(body.get("options")))}
    options.update({name: given[name] for name in (*_SHARED_OPTIONS, *LLAMA_OPTIONS) if name in given})
    if "repetition_penalty" in given:
        options.setdefault("repeat_penalty", given["repetition_penalty"])
    limit = given.get("max_completion_tokens", given.get("max_tokens"))
    if limit is not None:
        options["num_predict"] = limit
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    return options


def _chosen_tools(body: Frame) -> list[Any]:
    """Not every dialect has `tool_choice`: "none" takes the tools away, a named tool leaves only that one."""
    tools = as_list(body.get("tools"))
    choice = body.get("tool_choice")
    if choice == "none":
        return []
    named = as_dict(as_dict(choice).get("function")).get("name")
    if not named:
        return tools
    return [tool for tool in tools if as_dict(as_dict(tool).get("function")).get("name") == named]


def _packed(vector: Any) -> str:
    """OpenAI's own client asks for base64: little-endian 32-bit floats."""
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (TypeError, struct.error, OverflowError):
        raise GarbledAnswer("an embedding is no list of numbers", str(vector)[:200]) from None


def _unpacked(vector: Any) -> list[Any]:
    if not isinstance(vector, str):
        return as_list(vector)
    try:
        packed = base64.b64decode(vector, validate=True)
        return list(struct.unpack(f"<{len(packed) // 4}f", packed))
    except (ValueError, struct.error):
        raise GarbledAnswer("an embedding is no base64 of 32-bit floats", vector[:200]) from None
