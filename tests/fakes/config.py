"""What tests can turn on the fake, by flag or by `POST /_control`, and what they can read of it."""

import time
from collections import deque
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

# A model can do this unless it says otherwise. As in Ollama, one that can think does so unless told not to.
CAPABILITIES = ("completion", "tools", "vision", "insert")
DEFAULT_MODELS: tuple[dict[str, Any], ...] = (
    {"name": "llama3.2:latest"},
    {"name": "qwen3:8b", "capabilities": [*CAPABILITIES, "thinking"]},
    {"name": "nomic-embed-text:latest", "capabilities": ["embedding"]},
)


@dataclass
class Fault:
    """Something going wrong, for the requests that match, `times` times (None: until it is taken away).

    `after` pieces of the answer it strikes: 0 is before the first byte.
    """

    kind: Literal["error", "busy", "hang", "cut", "truncate", "garbage"]
    after: int = 0
    times: int | None = None
    phase: Literal["answer", "load"] = "answer"
    path: str | None = None
    model: str | None = None
    status: int = 500
    message: str = "llama runner process has terminated: exit status 2"
    # Of an error before the first byte: what else stands in it, and when it wants to be asked again.
    fields: dict[str, Any] = field(default_factory=dict)
    retry_after: str | None = None

    def matches(self, path: str, model: str | None, phase: str) -> bool:
        if self.times == 0 or self.phase != phase:
            return False
        return self.path in {None, path} and self.model in {None, model}


@dataclass
class Config:
    models: list[dict[str, Any]] = field(default_factory=lambda: [dict(m) for m in DEFAULT_MODELS])
    # Time: to load a model, to read the prompt, for each piece of an answer.
    swap_seconds: float = 0.0
    prefill_seconds: float = 0.0
    token_seconds: float = 0.0
    # Room: models in memory, requests at once for each of them, requests that may wait beyond that.
    max_resident: int = 1
    parallel: int = 64
    max_queue: int = 512
    keep_alive_seconds: float = 300.0
    # What it says: a fixed text, or so many made-up words, or (by default) what it was told.
    reply: str | None = None
    reply_tokens: int | None = None
    thinking: str = "The user wants an answer. I will give one."
    dimensions: int = 8
    version: str = "0.33.0"
    faults: list[Fault] = field(default_factory=list)

    def update(self, changes: dict[str, Any]) -> None:
        known = {each.name for each in fields(self)}
        unknown = set(changes) - known
        if unknown:
            raise ValueError(f"no such knob: {', '.join(sorted(unknown))}")
        for name, value in changes.items():
            setattr(self, name, self._read(name, value))

    def _read(self, name: str, value: Any) -> Any:
        if name == "faults":
            return [Fault(**fault) for fault in value]
        if name == "models":
            return [{"name": model} if isinstance(model, str) else dict(model) for model in value]
        return value

    def fault(self, path: str, model: str | None, phase: str = "answer") -> Fault | None:
        """The first fault that applies; it is used up by one."""
        for fault in self.faults:
            if fault.matches(path, model, phase):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None


@dataclass
class Stats:
    """`started` = `finished` + `aborted` (the client went away) + `failed` + `running` + `waiting`."""

    started: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    max_running: int = 0
    loads: int = 0
    swaps: int = 0
    unloads: int = 0
    log: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=10_000))

    def note(self, event: str, **details: Any) -> None:
        self.log.append({"event": event, "at": time.time(), **details})

    def reset(self) -> None:
        """Counters start over; what is going on right now stays counted."""
        fresh = Stats(running=self.running, waiting=self.waiting, started=self.running + self.waiting)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def as_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"log": list(self.log)}


def config_as_json(config: Config) -> dict[str, Any]:
    return asdict(config)
