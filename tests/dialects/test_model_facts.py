"""What lists of models tell of a model beside its name, and how Ollama's clients hear of it."""

from typing import Any

import pytest

from app.dialects import TARGET_DIALECTS
from app.dialects.facts import ModelFacts, readable_count
from app.dialects.ollama import shown_model

OLLAMA, OPENAI = TARGET_DIALECTS["ollama"], TARGET_DIALECTS["openai"]
COMPLETION = ("completion",)


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        # llama.cpp, then an older one
        (
            {
                "owned_by": "llamacpp",
                "architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]},
                "meta": {
                    "n_vocab": 32_000,
                    "n_ctx": 4096,
                    "n_ctx_train": 131_072,
                    "n_embd": 4096,
                    "n_params": 7_000_000_000,
                },
            },
            ModelFacts(
                owner="llamacpp",
                context_length=4096,
                vocabulary_size=32_000,
                embedding_length=4096,
                parameter_count=7_000_000_000,
                capabilities=("completion", "vision"),
            ),
        ),
        ({"meta": {"n_ctx_train": 8192}}, ModelFacts(context_length=8192, capabilities=COMPLETION)),
        ({"meta": None}, ModelFacts(capabilities=COMPLETION)),
        # vLLM
        (
            {"owned_by": "vllm", "max_model_len": 32_768, "root": "x", "permission": []},
            ModelFacts(owner="vllm", context_length=32_768, capabilities=COMPLETION),
        ),
        # LM Studio
        (
            {
                "type": "llm",
                "arch": "qwen2",
                "quantization": "4bit",
                "max_context_length": 32_768,
                "capabilities": ["tool_use"],
            },
            ModelFacts(
                architecture="qwen2",
                quantization="4bit",
                context_length=32_768,
                capabilities=("completion", "tools"),
            ),
        ),
        (
            {"type": "embeddings", "arch": "bert"},
            ModelFacts(architecture="bert", capabilities=("embedding",)),
        ),
        # Mistral
        (
            {"max_context_length": 100, "capabilities": {"function_calling": True, "vision": False}},
            ModelFacts(context_length=100, capabilities=("completion", "tools")),
        ),
        # OpenRouter
        (
            {"context_length": 200, "supported_parameters": ["tools", "seed"]},
            ModelFacts(context_length=200, capabilities=("completion", "tools")),
        ),
        # Groq
        ({"context_window": 300}, ModelFacts(context_length=300, capabilities=COMPLETION)),
    ],
)
def test_openai_s_relatives_tell_it_each_in_its_own_words(model: Any, facts: ModelFacts) -> None:
    assert OPENAI.model_facts({"id": "m", **model}) == facts


@pytest.mark.parametrize(
    "odd", [None, True, -1, 0, "8192", float("nan"), [], [[]], {}, {"n_ctx": "x"}, [None, 3, {}]]
)
def test_what_makes_no_sense_is_not_told(odd: Any) -> None:
    names = (
        "meta",
        "max_model_len",
        "arch",
        "capabilities",
        "architecture",
        "owned_by",
        "type",
        "supported_parameters",
    )
    facts = OPENAI.model_facts({"id": "m", **dict.fromkeys(names, odd)})
    if odd == "8192":
        facts = OPENAI.model_facts({"id": "m", "max_model_len": odd, "meta": odd})
    assert facts == ModelFacts(capabilities=COMPLETION)
    assert OPENAI.model_facts({"id": "m", "max_model_len": 1e300}).context_length == 2**63 - 1


def test_clients_of_ollama_find_the_length_of_the_context() -> None:
    entry = OLLAMA.model_entry("m", 0, None)
    shown = shown_model(entry, ModelFacts(context_length=4096, parameter_count=3_212_749_888, owner="vllm"))
    assert shown["model_info"] == {
        "general.architecture": "unknown",
        "general.parameter_count": 3_212_749_888,
        "general.organization": "vllm",
        "unknown.context_length": 4096,
    }
    assert (shown["details"]["parameter_size"], shown["details"]["family"]) == ("3.2B", "")
    named = shown_model(
        entry, ModelFacts(architecture="qwen2", context_length=5, capabilities=("embedding",))
    )
    assert named["model_info"] == {"general.architecture": "qwen2", "qwen2.context_length": 5}
    assert (named["details"]["family"], named["capabilities"]) == ("qwen2", ["embedding"])
    nothing = shown_model(entry, ModelFacts())
    assert (nothing["model_info"], nothing["capabilities"]) == ({}, ["completion"])
    assert nothing["details"] == entry["details"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, ""),
        (7, "7"),
        (121_920, "122K"),
        (137_160_000, "137.16M"),
        (7_000_000_000, "7B"),
        (3_212_749_888, "3.2B"),
    ],
)
def test_parameters_are_counted_as_ollama_counts_them(count: int, text: str) -> None:
    assert readable_count(count) == text
