"""Sampling: Ollama keeps it in `options`, OpenAI at the top of the body, and some of the names differ."""

from collections.abc import Mapping
from typing import Any

from app.dialects.shapes import as_dict, without_nulls

# One name in both dialects.
_COMMON = ("temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty")

# Not OpenAI's own, but llama.cpp and its relatives take them under Ollama's names. Passed on rather than
# dropped: a sampler that was silently ignored is worse than a target that says it does not know the word.
_EXTRA = (
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
_OPENAI_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}


def sampling_from_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Ollama's `options` as top-level fields of an OpenAI body. Runner options have no counterpart."""
    given = without_nulls(options or {})
    sampling = {name: given[name] for name in (*_COMMON, *_EXTRA) if name in given}
    limit = given.get("num_predict")
    # Zero and below mean "no limit" (-1) or "fill the context" (-2): OpenAI says that by saying nothing.
    if isinstance(limit, int | float) and limit > 0:
        sampling["max_tokens"] = int(limit)
    return sampling


def options_from_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level fields of an OpenAI body as Ollama's `options`.

    An `options` object that a caller put into an OpenAI body (num_ctx, say) is taken as the base.
    """
    given = without_nulls(body)
    options: dict[str, Any] = {**_OPENAI_DEFAULTS, **without_nulls(as_dict(body.get("options")))}
    options.update({name: given[name] for name in (*_COMMON, *_EXTRA) if name in given})
    if "repetition_penalty" in given:
        options.setdefault("repeat_penalty", given["repetition_penalty"])
    limit = given.get("max_completion_tokens", given.get("max_tokens"))
    if limit is not None:
        options["num_predict"] = limit
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    return options
