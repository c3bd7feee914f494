"""Model names as Ollama reads them: `llama3.2`, `llama3.2:latest` and `library/llama3.2` are one model."""

from collections.abc import Iterable

_DEFAULT_HOST = "registry.ollama.ai/"
_DEFAULT_NAMESPACE = "library/"
_DEFAULT_TAG = "latest"


def canonical_model(name: str) -> str:
    """The name with its tag and without the defaults that Ollama leaves unsaid."""
    name = name.strip().removeprefix(_DEFAULT_HOST).removeprefix(_DEFAULT_NAMESPACE)
    # Only the last part can carry a tag: the host before it may have a port.
    path, slash, last = name.rpartition("/")
    if ":" not in last:
        last = f"{last}:{_DEFAULT_TAG}"
    return f"{path}{slash}{last}"


def model_key(name: str) -> str:
    """Equal for all spellings of one model; Ollama ignores case."""
    return canonical_model(name).lower()


def find_model(name: str, available: Iterable[str]) -> str | None:
    """The target's own spelling of the model, or None. An exact match wins over a lenient one."""
    names = list(available)
    if name in names:
        return name
    key = model_key(name)
    return next((candidate for candidate in names if model_key(candidate) == key), None)
