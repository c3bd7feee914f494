"""Loading: which options force Ollama to reload a model, and the call that makes a model resident.

Two jobs with one affinity key can run after each other without a swap.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from app.dialects.models import model_key
from app.dialects.shapes import Frame, Kind, as_dict, ollama_time

RUNNER_OPTIONS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")


def runner_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that take effect when the model is loaded, in one fixed order and spelling."""
    chosen: dict[str, Any] = {}
    for name in RUNNER_OPTIONS:
        value = (options or {}).get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        # Ollama reads a negative num_gpu as "as many layers as fit", which is what it does unasked.
        undecided = name == "num_gpu" and isinstance(value, int) and value < 0
        if value is not None and not undecided:
            chosen[name] = value
    return chosen


def affinity_key(model: str, options: Mapping[str, Any] | None) -> str:
    """Readable and equal exactly when no reload is needed: `llama3.2:latest num_ctx=8192`."""
    chosen = runner_options(options)
    return " ".join([model_key(model), *(f"{name}={json.dumps(value)}" for name, value in chosen.items())])


def load_request(kind: Kind, body: Mapping[str, Any]) -> Frame:
    """The call that makes an Ollama-shaped job's model resident as the job itself will need it.

    It goes to the job's own endpoint. A `keep_alive` of zero stays behind: an empty request with it unloads.
    """
    load: Frame = {"model": body.get("model"), **_nothing_to_say(kind, body)}
    options = runner_options(as_dict(body.get("options")))
    if options:
        load["options"] = options
    if body.get("keep_alive") is not None and not _is_zero(body["keep_alive"]):
        load["keep_alive"] = body["keep_alive"]
    return load


def _nothing_to_say(kind: Kind, body: Mapping[str, Any]) -> Frame:
    match kind:
        case "chat":
            return {"messages": [], "stream": False}
        case "generate":
            return {"prompt": "", "stream": False}
        case "embed":
            return {"prompt": ""} if is_legacy_embeddings(body) else {"input": []}


def is_legacy_embeddings(body: Mapping[str, Any]) -> bool:
    """`/api/embeddings` takes one `prompt`; `/api/embed`, which replaced it, takes `input`."""
    return "prompt" in body and "input" not in body


def emptiness(kind: Kind, body: Mapping[str, Any]) -> Literal["load", "unload"] | None:
    """Whether an Ollama-shaped chat or generate request only asks to load or unload its model."""
    if kind == "embed" or body.get("messages" if kind == "chat" else "prompt"):
        return None
    return "unload" if "keep_alive" in body and _is_zero(body["keep_alive"]) else "load"


def empty_answer(kind: Kind, model: str, at: datetime, reason: Literal["load", "unload"]) -> Frame:
    """Ollama's whole answer to such a request: also ours where a target has nothing to load."""
    said = {"message": {"role": "assistant", "content": ""}} if kind == "chat" else {"response": ""}
    return {"model": model, "created_at": ollama_time(at), **said, "done": True, "done_reason": reason}


def _is_zero(keep_alive: Any) -> bool:
    if isinstance(keep_alive, str):
        digits = keep_alive.strip("+-0.hmsuµn ")
        return bool(keep_alive.strip()) and not digits and "0" in keep_alive
    return isinstance(keep_alive, int | float) and keep_alive == 0
