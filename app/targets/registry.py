"""The registry: all targets, those of the environment and those of the table, each with its own prober.

Every process has one. What it finds out is written to the table, so that a process that starts while a
target is asleep still knows what the target has.
"""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import asyncpg
import msgspec
import orjson
import structlog

from app.dialects import DIALECTS, Frame, GarbledAnswer, parse_frame
from app.jobs.lanes import parse_llm_lane
from app.loops.coalesced import Coalesced
from app.loops.loop import Loop
from app.outbound import GuardedClient, OutboundError
from app.outbound.stream import StreamingClient
from app.secretbox import SecretBox, SecretBoxError
from app.store import targets as store
from app.store.database import Database
from app.targets.config import ECHO_NAME, TargetConfig, TargetFields, same_server
from app.targets.inventory import Inventory
from app.targets.target import Target
from app.targets.wake import WakeError, wake
from app.telemetry import TARGET_AWAKE

log = structlog.get_logger()

PROBE_SECONDS = 5.0
# Asleep, it is asked often: the moment it answers, its jobs go on.
ASLEEP_SECONDS = 1.0
RELOAD_SECONDS = 2.0
FRESH_SECONDS = 0.1
CONFIRM_SECONDS = 2.0
CATCH_UP_SECONDS = 1.0
FIRST_WAKE_SECONDS = 5.0
MOST_WAKE_SECONDS = 300.0
MAX_INVENTORY_BYTES = 8 * 1024 * 1024

OnReady = Callable[[list[tuple[str, str]]], None]


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


class Registry:
    def __init__(
        self,
        database: Database,
        guarded: GuardedClient,
        secret_box: SecretBox | None,
        configured: Sequence[TargetConfig],
        *,
        inventory_seconds: float,
        idle_seconds: float,
    ) -> None:
        self._database = database
        self._guarded = guarded
        self._secret_box = secret_box
        self._configured = {config.name: config for config in configured}
        self._inventory_seconds = inventory_seconds
        self._idle_seconds = idle_seconds
        self._client = StreamingClient()
        self._targets: dict[str, Target] = {}
        self._probers: dict[str, _Prober] = {}
        self._reloader = Loop("targets", self._reload_once, interval=RELOAD_SECONDS)
        self._loaded = False
        # One at a time: each of them stops and starts probers.
        self.reload = Coalesced(self._take_over)
        self._on_ready: list[OnReady] = []
        self._on_change: list[Callable[[], None]] = []
        for config in configured:
            self._targets[config.name] = Target(config, self._client, idle_seconds)

    async def start(self) -> None:
        if self._configured:
            await store.know_targets(self._database, list(self._configured))
        await self.reload()
        self._reloader.start()

    async def stop(self) -> None:
        await self._reloader.stop()
        await asyncio.gather(*(prober.stop() for prober in self._probers.values()))
        self._client.close()

    def on_ready(self, callback: OnReady) -> None:
        """Be told which (queue, lane) pairs became claimable because a target answered."""
        self._on_ready.append(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Be told that a target came, went, woke, fell asleep or changed."""
        self._on_change.append(callback)

    # -- what there is -------------------------------------------------------------------------------

    @property
    def targets(self) -> list[Target]:
        return list(self._targets.values())

    @property
    def is_empty(self) -> bool:
        """No target is configured: then the built-in `echo` serves."""
        return not self._targets

    def get(self, name: str) -> Target | None:
        return self._targets.get(name)

    def is_configured(self, name: str) -> bool:
        """Whether the environment makes it: then it cannot be changed over HTTP."""
        return name in self._configured

    @property
    def inventories(self) -> list[Inventory]:
        return [target.inventory for target in self._targets.values() if target.inventory is not None]

    def serving(self, model: str, pinned: str | None = None) -> Serving:
        eligible = [t for t in self._targets.values() if not pinned or t.name == pinned]
        ready = [t for t in eligible if t.awake and t.may_serve(model, pinned)]
        return Serving(
            ready,
            [t for t in eligible if t.awake is False],
            unasked=any(t.awake is None for t in eligible),
            no_such_target=bool(pinned) and not eligible,
        )

    def serving_lane(self, lane: str) -> Serving:
        parts = parse_llm_lane(lane)
        if parts is None:
            return Serving([], [], unasked=False)
        return self.serving(parts.model, parts.target or None)

    async def serving_surely(self, model: str, pinned: str | None = None) -> Serving:
        """As `serving`, but an unknown model is asked for once more: it may have been pulled just now."""
        serving = self.serving(model, pinned)
        if serving.ready or self.is_empty:
            return serving
        await self.refresh()
        return self.serving(model, pinned)

    async def refresh(self) -> None:
        """Ask all targets that are awake, or were not asked yet, unless that was just done."""
        await asyncio.gather(
            *(
                prober.ask_again()
                for name, prober in self._probers.items()
                if self._targets[name].awake is not False
            )
        )

    async def catch_up(self) -> None:
        """Let the inventory know what Foreman itself has just used or unloaded, unless that takes long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await asyncio.gather(
                    *(
                        prober.ask_since(self._targets[name].used_at)
                        for name, prober in self._probers.items()
                        if self._targets[name].awake
                    )
                )

    # -- changes -------------------------------------------------------------------------------------

    async def put(self, name: str, fields: TargetFields, *, keep_token: bool) -> bool:
        """Make or change a target; True when it is new. ValueError when its token cannot be kept."""
        config = TargetConfig.of(name, fields, "api")
        known = await store.url_of_token(self._database, name) if keep_token else None
        if known is not None and not same_server(known, config.url):
            raise ValueError("the URL is another server's: give the token for it, or null for none")
        sealed = None
        if fields.token is not None:
            if self._secret_box is None:
                raise ValueError("FOREMAN_SECRET_KEY is needed to keep a token")
            sealed = self._secret_box.seal(fields.token, _aad(name))
        created = await store.put_target(self._database, name, config.settings(), sealed, keep_token_of=known)
        await self.reload()
        return created

    async def delete(self, name: str) -> bool:
        deleted = await store.delete_target(self._database, name)
        if deleted:
            await self.reload()
            # Those that waited for it are looked at again.
            await self.unpark()
        return deleted

    async def _reload_once(self) -> float | None:
        await self.reload()
        return None

    async def _take_over(self) -> None:
        """What the table says: new, changed and removed targets, and what others found out."""
        rows = await store.list_targets(self._database)
        wanted: dict[str, tuple[TargetConfig, asyncpg.Record | None]] = {
            name: (config, None) for name, config in self._configured.items()
        }
        for row in rows:
            if row["name"] in self._configured:
                wanted[row["name"]] = (self._configured[row["name"]], row)
            elif row["settings"] is not None:
                wanted[row["name"]] = (self._config_of(row), row)
        changed = False
        for name in [name for name in self._targets if name not in wanted]:
            changed = True
            del self._targets[name]
            prober = self._probers.pop(name, None)
            if prober is not None:
                await prober.stop()
        for name, (config, row) in wanted.items():
            changed |= await self._adopt(name, config, row)
        self._loaded = True
        if changed:
            self.changed()

    async def _adopt(self, name: str, config: TargetConfig, row: asyncpg.Record | None) -> bool:
        target = self._targets.get(name)
        if target is not None and target.config != config:
            prober = self._probers.pop(name, None)
            if prober is not None:
                await prober.stop()
            target = None
        if target is None:
            target = self._targets[name] = Target(config, self._client, self._idle_seconds)
        known = target.inventory.names if target.inventory else None
        if row is not None:
            # Whoever asked last knows best: what one replica finds out counts for all of them.
            if row["inventory"] is not None and (
                target.recorded_at is None or row["answered_at"] > target.recorded_at
            ):
                target.recorded_at = row["answered_at"]
                target.inventory = Inventory.from_json(target.dialect, orjson.loads(row["inventory"]))
                target.answered_at = row["answered_at"]
            target.resident = row["resident"]
            if target.warning is None or target.awake:
                target.warning = row["warning"]
        if name not in self._probers:
            prober = self._probers[name] = _Prober(self, target)
            prober.start()
            return True
        return known != (target.inventory.names if target.inventory else None)

    def _config_of(self, row: asyncpg.Record) -> TargetConfig:
        fields = msgspec.convert(orjson.loads(row["settings"]), TargetFields)
        config = TargetConfig.of(row["name"], fields, "api")
        if row["token"] is None or self._secret_box is None:
            return config
        try:
            token = self._secret_box.open(row["token"], _aad(row["name"]))
        except SecretBoxError as problem:
            log.warning("target.token_not_readable", target=row["name"], problem=str(problem))
            return config
        return replace(config, token=token)

    # -- for the probers -----------------------------------------------------------------------------

    @property
    def database(self) -> Database:
        return self._database

    @property
    def guarded(self) -> GuardedClient:
        return self._guarded

    @property
    def inventory_seconds(self) -> float:
        return self._inventory_seconds

    async def unpark(self) -> None:
        """Let go of what was held back while targets were asleep, and tell where there is work."""
        self._ready([])
        async for work in store.unpark(self._database):
            self._ready(work)

    def _ready(self, work: list[tuple[str, str]]) -> None:
        for callback in self._on_ready:
            callback(work)

    def changed(self) -> None:
        for callback in self._on_change:
            callback()


def _media_type(header: str | None) -> str:
    found = re.match(r"[a-z]{1,20}/[a-z0-9.+-]{1,60}(?=\s*(;|$))", (header or "").strip().lower())
    return found[0] if found else "something untyped"


def _aad(name: str) -> str:
    return f"target:{name}"


class _Prober:
    """Asks one target what it has, every now and then and after each trouble."""

    def __init__(self, registry: Registry, target: Target) -> None:
        self._registry = registry
        self._target = target
        self._asked = 0.0
        # When the last question that was answered was put.
        self._began = -math.inf
        self._asking = asyncio.Lock()
        self._answers: dict[str, Frame | None] = {}
        self._has_news = False
        self._loop = Loop(f"target-{target.name}", self._probe, interval=registry.inventory_seconds)
        self._gauge = TARGET_AWAKE.labels(target.name)
        target.on_trouble = lambda _: self.trouble()
        target.on_residents = self._loop.wake

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        self._target.on_trouble = lambda _: None
        self._target.on_residents = lambda: None
        await self._loop.stop()

    def trouble(self) -> None:
        self._registry.changed()
        self._loop.wake()

    async def ask_again(self) -> None:
        if time.monotonic() - self._asked > FRESH_SECONDS:
            await self._ask()

    async def ask_since(self, moment: float) -> None:
        """Ask unless that was done after this moment."""
        if self._began <= moment:
            await self._ask(moment)

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
            if self._began > since and time.monotonic() - self._asked < FRESH_SECONDS / 4:
                return
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
        return Inventory.told(dialect, self._answers)

    async def _get(self, path: str, *, needed: bool = True) -> Frame | None:
        async with self._target.request("GET", path, idle_seconds=PROBE_SECONDS) as answer:
            body = await answer.read(MAX_INVENTORY_BYTES)
        if answer.status == 200:
            try:
                return parse_frame(body)
            except GarbledAnswer as problem:
                # Whatever is listening there: its words are not for our logs.
                media = _media_type(answer.headers.get("content-type"))
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
        target.asleep_since = None
        target.answered_at = datetime.now(UTC)
        target.warning = None
        self._gauge.set(1)
        recorded_at = await store.record_answer(
            self._registry.database, target.name, inventory.as_json(), forget=target.settle_residents(began)
        )
        if recorded_at is not None:
            # Once more: what another replica had found out before may have come in between.
            target.inventory, target.recorded_at = inventory, recorded_at
        if not was or known != inventory.names:
            if not was:
                log.info("target.answers", target=target.name, models=len(inventory.names))
            self._registry.changed()
            self._has_news = True
        if self._has_news:
            # What a database that went away in the middle left undone is done after the next answer.
            await self._registry.unpark()
            self._has_news = False

    async def _no_answer(self, problem: str) -> None:
        target = self._target
        fell_asleep = target.asleep_since is None
        target.awake = False
        target.warning = problem[:500]
        self._gauge.set(0)
        if fell_asleep:
            target.asleep_since = datetime.now(UTC)
            log.warning("target.asleep", target=target.name, problem=target.warning)
            self._registry.changed()
        await store.record_sleep(self._registry.database, target.name, target.warning)

    async def _try_to_wake(self) -> None:
        action = self._target.config.wake
        if action is None or not self._is_needed(await store.parked_lanes(self._registry.database)):
            return
        number = await store.take_wake(
            self._registry.database, self._target.name, FIRST_WAKE_SECONDS, MOST_WAKE_SECONDS
        )
        if number is None:
            return
        try:
            await wake(action, self._registry.guarded)
        except WakeError as problem:
            log.warning("target.wake_failed", target=self._target.name, problem=str(problem), tries=number)
            self._target.warning = f"wake: {problem}"[:500]
            await store.record_warning(self._registry.database, self._target.name, self._target.warning)
        else:
            log.info("target.wake_sent", target=self._target.name, tries=number)

    def _is_needed(self, lanes: Iterable[str]) -> bool:
        return any(self._target in self._registry.serving_lane(lane).asleep for lane in lanes)


ECHO_INVENTORY = Inventory(
    DIALECTS["ollama"],
    [
        {
            "name": ECHO_NAME,
            "model": ECHO_NAME,
            "modified_at": "1970-01-01T00:00:00Z",
            "size": 0,
            "digest": "",
            "details": {
                "parent_model": "",
                "format": "builtin",
                "family": "echo (built into Foreman: says the last message back)",
                "families": None,
                "parameter_size": "0",
                "quantization_level": "",
            },
        }
    ],
)
