"""Memory and turns: which models are resident, who waits for whom, and what a swap costs.

As in Ollama, requests are taken strictly in their order: one that has to load a model holds up those behind
it, even where those need no load. A load that its client gave up on leaves nothing behind.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.config import Config, Stats
from tests.patience import pretend_to_work

_RUNNER_DEFAULTS: dict[str, Any] = {
    "num_ctx": 4096,
    "num_batch": 512,
    "num_gpu": -1,
    "main_gpu": 0,
    "use_mmap": None,
    "num_thread": 0,
}
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
FOREVER = float("inf")


class ServerBusy(Exception):
    """More requests than may wait."""

    def __str__(self) -> str:
        return "server busy, please try again.  maximum pending requests exceeded"


def parse_keep_alive(value: Any, default: float) -> float:
    """Seconds as a number, or a Go duration; negative is for ever."""
    if value is None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool):
        return FOREVER if value < 0 else float(value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"invalid duration: {value!r}")
    sign, digits = (-1, value[1:]) if value.startswith("-") else (1, value.removeprefix("+"))
    if digits == "0":
        return 0.0
    parts = re.findall(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)", digits)
    if not parts or "".join(number + unit for number, unit in parts) != digits:
        raise ValueError(f'time: invalid duration "{value}"')
    total = sum(float(number) * _GO_UNITS[unit] for number, unit in parts)
    return FOREVER if sign < 0 and total else total


def runner_key(options: dict[str, Any]) -> dict[str, Any]:
    """The options that decide whether a resident model will do."""
    given = {name: options[name] for name in _RUNNER_DEFAULTS if options.get(name) is not None}
    key = {**_RUNNER_DEFAULTS, **given}
    if key["num_gpu"] < 0:
        key["num_gpu"] = -1
    return key


@dataclass
class Resident:
    model: str
    options: dict[str, Any]
    keep_alive: float = 0.0
    running: int = 0
    used_at: float = field(default_factory=time.time)
    expiry: asyncio.TimerHandle | None = None

    @property
    def expires_at(self) -> float:
        return self.used_at + min(self.keep_alive, 10 * 365 * 86400)


class Runners:
    def __init__(self, config: Config, stats: Stats) -> None:
        self._config = config
        self._stats = stats
        self._turn = asyncio.Lock()
        self._change = asyncio.Event()
        self._admitted = 0
        self.resident: dict[str, Resident] = {}

    @asynccontextmanager
    async def use(
        self, model: str, options: dict[str, Any], keep_alive: float, on_load: Callable[[], Any]
    ) -> AsyncIterator[None]:
        """A slot on the resident model, loaded first if need be."""
        room = self._config.parallel * self._config.max_resident + self._config.max_queue
        if self._admitted >= room:
            raise ServerBusy
        self._admitted += 1
        self._stats.waiting += 1
        try:
            try:
                runner = await self._ready(model, runner_key(options), on_load)
            finally:
                self._stats.waiting -= 1
            try:
                yield
            finally:
                self._done_with(runner, keep_alive)
        finally:
            self._admitted -= 1

    async def _ready(self, model: str, options: dict[str, Any], on_load: Callable[[], Any]) -> Resident:
        async with self._turn:
            runner = self.resident.get(model)
            if runner is None or runner.options != options:
                runner = await self._load(model, options, on_load)
            while runner.running >= self._config.parallel:
                await self._change.wait()
            runner.running += 1
            self._stats.running += 1
            self._stats.max_running = max(self._stats.max_running, self._stats.running)
            if runner.expiry is not None:
                runner.expiry.cancel()
            return runner

    async def _load(self, model: str, options: dict[str, Any], on_load: Callable[[], Any]) -> Resident:
        evicted = await self._make_room(model)
        await on_load()
        await pretend_to_work(self._config.swap_seconds)
        runner = self.resident[model] = Resident(model, options)
        self._stats.loads += 1
        self._stats.swaps += evicted
        self._stats.note("loaded", model=model, options=options, swap=evicted)
        return runner

    async def _make_room(self, model: str) -> bool:
        evicted = False
        while model in self.resident or len(self.resident) >= self._config.max_resident:
            victim = self.resident.get(model) or min(self.resident.values(), key=lambda each: each.used_at)
            while victim.running:
                await self._change.wait()
            if self.resident.get(victim.model) is victim:
                self._forget(victim)
                evicted = True
        return evicted

    def _done_with(self, runner: Resident, keep_alive: float) -> None:
        runner.running -= 1
        self._stats.running -= 1
        runner.used_at = time.time()
        runner.keep_alive = keep_alive
        if runner.expiry is not None:
            runner.expiry.cancel()
        if keep_alive == 0 and not runner.running:
            self._expire(runner)
        elif keep_alive != FOREVER:
            runner.expiry = asyncio.get_running_loop().call_later(keep_alive, self._expire, runner)
        self._changed()

    def unload(self, model: str) -> None:
        runner = self.resident.get(model)
        if runner is not None:
            runner.keep_alive = 0.0
            self._expire(runner)

    def _expire(self, runner: Resident) -> None:
        if not runner.running and self.resident.get(runner.model) is runner:
            self._forget(runner)
            self._changed()

    def _forget(self, runner: Resident) -> None:
        if runner.expiry is not None:
            runner.expiry.cancel()
        del self.resident[runner.model]
        self._stats.unloads += 1
        self._stats.note("unloaded", model=runner.model)

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
