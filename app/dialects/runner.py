"""Loading: which options force a runner to reload its model.

Two jobs with one affinity key can run after each other without a swap.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.dialects.models import model_key

# Numbers become part of the lane, which is indexed and so must stay short.
RunnerNumber = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class RunnerOptions(msgspec.Struct, frozen=True, gc=False):
    """The options that decide which resident model can serve a job."""

    num_ctx: RunnerNumber | UnsetType | None = UNSET
    num_batch: RunnerNumber | UnsetType | None = UNSET
    num_gpu: RunnerNumber | UnsetType | None = UNSET
    main_gpu: RunnerNumber | UnsetType | None = UNSET
    use_mmap: bool | UnsetType | None = UNSET
    num_thread: RunnerNumber | UnsetType | None = UNSET


RUNNER_OPTIONS = RunnerOptions.__struct_fields__


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


def unloads(keep_alive: Any) -> bool:
    """Whether a model is to be gone at once: zero, as a number or as one of Go's durations."""
    if isinstance(keep_alive, str):
        digits = keep_alive.strip("+-0.hmsuµn ")
        return bool(keep_alive.strip()) and not digits and "0" in keep_alive
    return isinstance(keep_alive, int | float) and keep_alive == 0
