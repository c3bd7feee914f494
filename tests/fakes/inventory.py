"""The models: `/api/tags`, `/api/ps`, `/api/show`, `/v1/models`, and finding one by its name."""

import hashlib
from datetime import UTC, datetime
from typing import Any

from tests.fakes.asks import Rejected
from tests.fakes.config import CAPABILITIES, Config
from tests.fakes.runners import Resident

_MODIFIED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def find(config: Config, name: str) -> dict[str, Any] | None:
    """`x` is `x:latest`, and case does not matter."""
    wanted = full_name(name).lower()
    return next((model for model in config.models if full_name(model["name"]).lower() == wanted), None)


def existing(config: Config, name: Any) -> dict[str, Any]:
    """The model, or Ollama's 404."""
    model = find(config, name) if isinstance(name, str) else None
    if model is None:
        raise Rejected(404, f"model '{name}' not found")
    return model


def full_name(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def capabilities(model: dict[str, Any]) -> list[str]:
    return list(model.get("capabilities", CAPABILITIES))


def tags(config: Config) -> dict[str, Any]:
    return {
        "models": [
            {
                "name": full_name(model["name"]),
                "model": full_name(model["name"]),
                "modified_at": _go_time(_MODIFIED_AT),
                "size": 2_019_393_189,
                "digest": _digest(model),
                "details": _details(model),
            }
            for model in config.models
        ]
    }


def processes(config: Config, resident: list[Resident]) -> dict[str, Any]:
    longest_first = sorted(resident, key=lambda runner: -runner.expires_at)
    return {"models": [_process(config, runner) for runner in longest_first]}


def _process(config: Config, runner: Resident) -> dict[str, Any]:
    model = find(config, runner.model) or {"name": runner.model}
    return {
        "name": runner.model,
        "model": runner.model,
        "size": 3_019_393_189,
        "digest": _digest(model),
        "details": _details(model),
        "expires_at": _go_time(datetime.fromtimestamp(runner.expires_at, UTC)),
        "size_vram": 3_019_393_189,
        "context_length": runner.options["num_ctx"],
    }


def show(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "license": "MIT",
        "modelfile": f"FROM {full_name(model['name'])}\n",
        "parameters": 'stop    "<|im_end|>"',
        "template": "{{ .Prompt }}",
        "details": _details(model),
        "model_info": {
            "general.architecture": "llama",
            "general.parameter_count": 3_212_749_888,
            "llama.context_length": 131_072,
            "llama.embedding_length": 3072,
        },
        "capabilities": capabilities(model),
        "modified_at": _go_time(_MODIFIED_AT),
    }


def openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(_MODIFIED_AT.timestamp()), "owned_by": "library"}


def openai_models(config: Config) -> dict[str, Any]:
    data = [openai_model(full_name(model["name"])) for model in config.models]
    return {"object": "list", "data": data}


def _details(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "3.2B",
        "quantization_level": "Q4_K_M",
    }


def _digest(model: dict[str, Any]) -> str:
    return hashlib.sha256(full_name(model["name"]).encode()).hexdigest()


def _go_time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
