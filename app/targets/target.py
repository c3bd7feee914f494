"""One target as this process knows it: awake or not, what it has, what is resident, and the line to it."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from app.dialects import TARGET_DIALECTS
from app.dialects.models import model_key
from app.dialects.protocol import TargetDialect
from app.dialects.shapes import Frame
from app.outbound.client import GuardedClient
from app.outbound.stream import OutboundStream
from app.targets.breaker import FAILURES, Breaker
from app.targets.config import TargetConfig
from app.targets.inventory import Inventory
from app.telemetry import HIDDEN

log = structlog.get_logger()

# For how long something that was just used is taken to be resident still. Ollama keeps models for five
# minutes unless it is told otherwise; when it is wrong, the target loads the model a moment later.
RESIDENT_SECONDS = 120.0
# For how long what a target told of its memory is taken for what is there now.
CURRENT_SECONDS = 1.0


class Target:
    def __init__(
        self, config: TargetConfig, client: GuardedClient, idle_seconds: float, whole_seconds: float = 0.0
    ) -> None:
        self.config = config
        self.dialect: TargetDialect = TARGET_DIALECTS[config.dialect]
        self._client = client
        self._idle_seconds = idle_seconds
        # For an answer that is not streamed: nothing comes of it before all of it does.
        self.whole_seconds = max(idle_seconds, whole_seconds)
        self.inventory: Inventory | None = None
        # None until it was asked for the first time.
        self.awake: bool | None = None
        self.asleep_since: datetime | None = None
        self.answered_at: datetime | None = None
        # The answer that the table told last, by the database's clock.
        self.recorded_at: datetime | None = None
        # Why it was not reached or not woken, until it answers; and how its answers to jobs went wrong, until
        # one ends well: it may go on telling of its models all the while.
        self.warning: str | None = None
        self.failure: str | None = None
        # How many jobs in a row did not end well, for whatever reason of its own.
        self._failures = 0
        self.breaker = Breaker()
        # The affinity key of what was last sent there, by anybody.
        self.resident: str | None = None
        self.shown: dict[str, Frame] = {}
        self._loaded: dict[str, float] = {}
        # When something was loaded or unloaded of which the inventory does not know yet.
        self.residents_changed_at = -math.inf
        # When a model was last used, which moves the moment at which it will be unloaded.
        self.used_at = -math.inf
        # Set by whoever watches it.
        self.on_trouble: Callable[[Target], None] = lambda _: None
        self.on_residents: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return self.config.name

    def may_serve(self, model: str, pinned: str | None) -> bool:
        """Whether it is known, and not pinned elsewhere."""
        if pinned and pinned != self.name:
            return False
        return self.inventory is not None and self.inventory.serves(model)

    def own_name(self, model: str) -> str:
        """How this target spells the model."""
        return (self.inventory.own_name(model) if self.inventory else None) or model

    def running_at(self, now: datetime) -> Sequence[Frame]:
        """What is in its memory, as it told it: without what was to be unloaded since.

        A model may be in use beyond its time, and clocks differ: what was told only just is believed.
        """
        if self.inventory is None:
            return ()
        told_at = self.answered_at or now
        believed = timedelta(seconds=2 * CURRENT_SECONDS)
        is_current = bool(self.awake) and now - told_at < believed
        return self.inventory.running_at(now, told_at if is_current else None)

    def without_token(self, text: str) -> str:
        """What it said, but for the token that it was sent: some repeat what they refuse."""
        token = self.config.token
        return text if token is None else text.replace(token, HIDDEN)

    def request(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        idle_seconds: float | None = None,
        *,
        replayable: bool = True,
    ) -> AbstractAsyncContextManager[OutboundStream]:
        """Asked twice, a target only answers twice; but whoever counts how often it is asked may say no."""
        headers = {"content-type": "application/json"} if content else {}
        if self.config.token is not None:
            headers["authorization"] = f"Bearer {self.config.token}"
        return self._client.stream(
            method,
            self.config.url + path,
            headers=headers,
            content=content,
            idle_seconds=self._idle_seconds if idle_seconds is None else idle_seconds,
            replayable=replayable,
        )

    @property
    def keeps_failing(self) -> bool:
        """Once is nothing."""
        return self._failures >= FAILURES or not self.breaker.is_closed

    @property
    def trouble(self) -> str | None:
        """What an operator should know of it."""
        return self.failure or self.warning if self.keeps_failing else self.warning

    # -- what runs tell ------------------------------------------------------------------------------

    def answered(self) -> None:
        self.failure = None
        self._failures = 0
        self._close_breaker()

    def _close_breaker(self) -> None:
        if not self.breaker.is_closed:
            log.info("target.breaker_closed", target=self.name)
        self.breaker.succeeded()

    def undecided(self) -> None:
        self.breaker.undecided()

    def answered_badly(self, problem: str) -> None:
        """With an error or nonsense. That costs nobody any time, and the next call may well be a good one."""
        self._close_breaker()
        self._failed(problem)

    def failed(self, problem: str) -> None:
        """Whoever asked waited in vain: it fell silent, or its answer broke off."""
        self._failed(problem)
        was_closed, now = self.breaker.is_closed, time.monotonic()
        self.breaker.failed(now)
        if was_closed and not self.breaker.is_closed:
            pause = round(self.breaker.seconds_left(now), 1)
            log.warning("target.breaker_opened", target=self.name, problem=self.failure, seconds=pause)

    def _failed(self, problem: str) -> None:
        self.failure = problem[:500]
        self._failures += 1
        self.on_trouble(self)

    def unreachable(self, problem: str) -> None:
        self.warning = problem[:500]
        self.breaker.undecided()
        self._loaded.clear()
        self.awake = False
        self.on_trouble(self)

    def out_of_date(self) -> None:
        """It does not have what its inventory says."""
        self.on_trouble(self)

    def is_resident(self, affinity: str) -> bool:
        used = self._loaded.get(affinity)
        return used is not None and time.monotonic() - used < RESIDENT_SECONDS

    def loaded(self, affinity: str) -> None:
        """Just loaded or used. Whatever else was resident may have made room for it."""
        if affinity not in self._loaded:
            self._loaded.clear()
        self._loaded[affinity] = time.monotonic()
        self._expect_resident(affinity, resident=True)

    def unloaded(self, affinity: str) -> None:
        self._loaded.pop(affinity, None)
        self._expect_resident(affinity, resident=False)

    def _expect_resident(self, affinity: str, *, resident: bool) -> None:
        if not self.dialect.tells_residents or self.inventory is None:
            return
        self.used_at = time.monotonic()
        if (_model_of(affinity) in self.inventory.resident_models) is not resident:
            self.residents_changed_at = time.monotonic()
            self.on_residents()

    def settle_residents(self, asked_at: float) -> bool:
        """Forget what was gone when the inventory was asked for; True when nothing is resident."""
        if self.inventory is None or not self.dialect.tells_residents:
            return False
        resident = self.inventory.resident_models
        for affinity, used_at in list(self._loaded.items()):
            if used_at < asked_at and _model_of(affinity) not in resident:
                del self._loaded[affinity]
        return not resident


def _model_of(affinity: str) -> str:
    return model_key(affinity.split(" ", 1)[0])


@dataclass(frozen=True, slots=True)
class Serving:
    """Who can serve a model: those that answered and have it, and those that might once they answer."""

    ready: list[Target]
    asleep: list[Target]
    # Not asked yet: this process has just started.
    unasked: bool
    # A pinned target that does not exist.
    no_such_target: bool = False

    @property
    def is_unknown(self) -> bool:
        return not self.ready and not self.asleep and not self.unasked
