"""What is known of a model beside its name, in no dialect's words; zero, empty and nothing mean: not told."""

import msgspec


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    architecture: str = ""
    # How much its target takes of it, where that is less than what it was trained for.
    context_length: int = 0
    parameter_count: int = 0
    embedding_length: int = 0
    vocabulary_size: int = 0
    quantization: str = ""
    owner: str = ""
    # In Ollama's words; none where the target does not say it.
    capabilities: tuple[str, ...] = ()


def readable_count(count: int) -> str:
    """A number of parameters as Ollama writes it: 3.2B, 7B, 137.16M, 122K."""
    for size, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= size:
            return f"{count / size:.{0 if count % size == 0 else digits}f}{letter}"
    return str(count) if count else ""
