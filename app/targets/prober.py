"""The prober of one target: asks what it has, notices when it sleeps, and wakes it when it is needed."""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

import structlog

from app.dialects.framing import parse_frame
from app.dialects.shapes import Frame, GarbledAnswer
from app.loops.loop import Loop
from app.outbound.client import GuardedClient
from app.outbound.errors import OutboundError
from app.store import targets as store
from app.store.database import Database
from app.targets.config import WakeAction
from app.targets.inventory import Inventory
from app.targets.target import Serving, Target
from app.targets.wake import WakeError, wake

log = structlog.get_logger()

PROBE_SECONDS = 5.0
# Asleep, it is asked often: the moment it answers, its jobs go on.
ASLEEP_SECONDS = 1.0
FRESH_SECONDS = 0.1
CONFIRM_SECONDS = 2.0
FIRST_WAKE_SECONDS = 5.0
MOST_WAKE_SECONDS = 300.0
MAX_INVENTORY_BYTES = 8 * 1024 * 1024


class Prober(Loop):
    """Asks one target what it has, every now and then and after each trouble."""

    def __init__(
        self,
        target: Target,
        database: Database,
        guarded: GuardedClient,
        *,
        interval: float,
        serving_lane: Callable[[str], Serving],
        changed: Callable[[], None],
        unpark: Callable[[], Awaitable[None]],
    ) -> None:
        """`changed`: to be told of every change; `unpark`: of those that held-back jobs wait for."""
        self._target = target
        self._database = database
        self._guarded = guarded
        self._serving_lane = serving_lane
        self._changed = changed
        self._unpark = unpark
        self._asked = 0.0
        # When the last question that was answered was put.
        self._began = -math.inf
        self._asking = asyncio.Lock()
        self._answers: dict[str, Frame | None] = {}
        self._has_news = False
        super().__init__(f"target-{target.name}", self._probe, interval=interval)
        target.on_trouble = lambda _: self.trouble()
        target.on_residents = self.wake

    async def stop(self) -> None:
        self._target.on_trouble = lambda _: None
        self._target.on_residents = lambda: None
        await super().stop()

    def trouble(self) -> None:
        self._changed()
        self.wake()

    async def ask_now(self) -> None:
        """Ask, however lately that was done; what comes of it is known afterwards, and everywhere."""
        await self._ask()

    async def ask_again(self) -> None:
        if time.monotonic() - self._asked > FRESH_SECONDS:
            await self._ask()

    async def ask_since(self, moment: float) -> None:
        """Ask unless that was done after this moment, perhaps by somebody else who waits for the same."""
        async with self._asking:
            if self._began <= moment:
                await self._put_questions()

    async def _probe(self) -> float | None:
        await self._ask(self._target.residents_changed_at)
        if self._target.awake:
            # A model is gone only a moment after the answer to the call that unloaded it.
            just_changed = time.monotonic() - self._target.residents_changed_at < CONFIRM_SECONDS
            return CONFIRM_SECONDS / 4 if just_changed else None
        await self._try_to_wake()
        return ASLEEP_SECONDS

    async def _ask(self, since: float = -math.inf) -> None:
        async with self._asking:
            if self._began <= since or time.monotonic() - self._asked >= FRESH_SECONDS / 4:
                await self._put_questions()

    async def _put_questions(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                inventory = await self._inventory()
        except TimeoutError:
            await self._no_answer(f"no answer within {PROBE_SECONDS:g} s")
        except OutboundError as problem:
            await self._no_answer(problem.reason)
        except GarbledAnswer as problem:
            await self._no_answer(f"it answers, but not as a target does: {problem.kind}")
        else:
            await self._answer(inventory, began)
        finally:
            self._asked = time.monotonic()

    async def _inventory(self) -> Inventory:
        dialect = self._target.dialect
        for question in dialect.inventory_questions:
            known = self._answers.get(question.path) if self._target.awake else None
            if known is None or not question.lasting:
                self._answers[question.path] = await self._get(question.path, needed=question.needed)
        return Inventory(dialect, *dialect.read_inventory(self._answers))

    async def _get(self, path: str, *, needed: bool = True) -> Frame | None:
        async with self._target.request("GET", path, idle_seconds=PROBE_SECONDS) as answer:
            body = await answer.read(MAX_INVENTORY_BYTES)
        if answer.status == 200:
            try:
                return parse_frame(body)
            except GarbledAnswer as problem:
                # Whatever is listening there: its words are not for our logs.
                media = _media_type(answer.header("content-type"))
                size = len(body)
                raise GarbledAnswer(f"{path} answered {media} of {size} bytes: {problem.kind}") from problem
        if needed:
            raise GarbledAnswer(f"{path} answered {answer.status}")
        return None

    async def _answer(self, inventory: Inventory, began: float) -> None:
        target = self._target
        self._began = began
        was = target.awake
        known = target.inventory.names if target.inventory else None
        target.inventory = inventory
        target.awake = True
        slept_since, target.asleep_since = target.asleep_since, None
        target.answered_at = datetime.now(UTC)
        target.warning = None
        recorded_at = await store.record_answer(
            self._database, target.name, inventory.as_json(), forget=target.settle_residents(began)
        )
        if recorded_at is not None:
            # Once more: what another replica had found out before may have come in between.
            target.inventory, target.recorded_at = inventory, recorded_at
        if not was or known != inventory.names:
            if was is None or slept_since is not None:
                seconds = slept_since and round((target.answered_at - slept_since).total_seconds(), 1)
                models = len(inventory.names)
                log.info("target.answers", target=target.name, models=models, asleep_seconds=seconds)
            self._changed()
            self._has_news = True
        if self._has_news:
            # What a database that went away in the middle left undone is done after the next answer.
            await self._unpark()
            self._has_news = False

    async def _no_answer(self, problem: str) -> None:
        target = self._target
        fell_asleep = target.asleep_since is None
        target.awake = False
        target.warning = problem[:500]
        if fell_asleep:
            target.asleep_since = datetime.now(UTC)
            log.warning("target.asleep", target=target.name, problem=target.warning)
            self._changed()
        await store.record_sleep(self._database, target.name, target.warning)

    async def _try_to_wake(self) -> None:
        action = self._target.config.wake
        if action is None or not self._is_needed(await store.parked_lanes(self._database)):
            return
        number = await store.take_wake(
            self._database, self._target.name, FIRST_WAKE_SECONDS, MOST_WAKE_SECONDS
        )
        if number is not None:
            with contextlib.suppress(WakeError):
                await self._wake(action, number)

    async def wake_now(self, action: WakeAction) -> None:
        """Try to wake it, however lately that was done. Raises WakeError where it could not even be tried."""
        await self._wake(action, await store.take_wake(self._database, self._target.name, 0, 0) or 0)
        # It is looked at again soon, and so every other second while it sleeps.
        self.wake()

    async def _wake(self, action: WakeAction, number: int) -> None:
        try:
            await wake(action, self._guarded)
        except WakeError as problem:
            log.warning("target.wake_failed", target=self._target.name, problem=str(problem), tries=number)
            self._target.warning = f"wake: {problem}"[:500]
            await store.record_warning(self._database, self._target.name, self._target.warning)
            raise
        log.info("target.wake_sent", target=self._target.name, tries=number)

    def _is_needed(self, lanes: Iterable[str]) -> bool:
        return any(self._target in self._serving_lane(lane).asleep for lane in lanes)


def _media_type(header: str | None) -> str:
    found = re.match(r"[a-z]{1,20}/[a-z0-9.+-]{1,60}(?=\s*(;|$))", (header or "").strip().lower())
    return found[0] if found else "something untyped"
