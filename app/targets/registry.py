"""The registry: all targets, those of the environment and those of the table, each with its own prober.

Every process has one. What it finds out is written to the table, so that a process that starts while a
target is asleep still knows what the target has.
"""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import orjson
import structlog

from app.dialects.shapes import Frame
from app.jobs.lanes import parse_llm_lane
from app.loops.coalesced import Coalesced
from app.loops.loop import Loop
from app.outbound.client import GuardedClient
from app.outbound.guard import ANY_ADDRESS
from app.secretbox import SecretBox, SecretBoxError
from app.store import targets as store
from app.store.changes import Changes
from app.store.database import Database
from app.store.secrets import TOKEN, WAKE, Kind
from app.targets.config import TargetConfig, TargetFields, same_server
from app.targets.inventory import Inventory
from app.targets.prober import Prober
from app.targets.target import CURRENT_SECONDS, Serving, Target
from app.targets.wake import WakeError
from app.telemetry import TARGET_AWAKE, TARGET_BREAKER, TARGET_RESIDENT, TARGET_SLOTS, Names

log = structlog.get_logger()

RELOAD_SECONDS = 2.0
CATCH_UP_SECONDS = 1.0

OnReady = Callable[[Changes[None]], None]


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
        whole_seconds: float = 0.0,
    ) -> None:
        self._database = database
        self._guarded = guarded
        self._secret_box = secret_box
        self._configured = {config.name: config for config in configured}
        self._inventory_seconds = inventory_seconds
        self._patience = (idle_seconds, whole_seconds)
        # The targets' slots limit how much is asked of them at once.
        self._client = GuardedClient(
            ANY_ADDRESS, max_connections=sys.maxsize, connect_seconds=5.0, idle_seconds=20.0
        )
        self._targets: dict[str, Target] = {}
        self._probers: dict[str, Prober] = {}
        # What cannot be opened, and was said so: it is found again with every look at the table.
        self._unreadable: set[tuple[str, bytes]] = set()
        self._reloader = Loop("targets", self._reload_once, interval=RELOAD_SECONDS)
        # One at a time: each of them stops and starts probers.
        self.reload = Coalesced(self._take_over)
        self._on_ready: list[OnReady] = []
        self._on_change: list[Callable[[], None]] = []
        for config in configured:
            self._targets[config.name] = Target(config, self._client, *self._patience)

    async def start(self) -> None:
        if self._configured:
            await store.know_targets(self._database, list(self._configured))
        await self.reload()
        await self._reloader.start()

    async def stop(self) -> None:
        await self._reloader.stop()
        await asyncio.gather(*(prober.stop() for prober in self._probers.values()))
        await self._client.aclose()

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

    async def running(self) -> list[Frame]:
        """What is resident now, as the targets tell it; of one that does not answer, what it told last."""
        await self.catch_up(CURRENT_SECONDS)
        now = datetime.now(UTC)
        return [each for target in self._targets.values() for each in target.running_at(now)]

    async def catch_up(self, seconds: float = math.inf) -> None:
        """Let the inventory know what is resident after what Foreman itself has just used or unloaded, and in
        any case what was told longer ago than this, unless that takes long."""
        oldest = time.monotonic() - seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await asyncio.gather(
                    *(
                        prober.ask_since(max(self._targets[name].used_at, oldest))
                        for name, prober in self._probers.items()
                        if self._targets[name].awake and self._targets[name].dialect.tells_residents
                    )
                )

    async def measure(self) -> None:
        """Bring the gauges of the targets up to date; those of targets that are gone go, too."""
        for gauge in (TARGET_AWAKE, TARGET_BREAKER, TARGET_SLOTS, TARGET_RESIDENT):
            gauge.clear()
        names, residents = Names(), Names()
        for target in self._targets.values():
            [name] = names.known(target.name)
            if target.awake is not None:
                TARGET_AWAKE.labels(name).set(target.awake)
            TARGET_BREAKER.labels(name).set(not target.breaker.is_closed)
            TARGET_SLOTS.labels(name).set(target.config.slots)
            for model in target.inventory.resident_models if target.inventory and target.awake else ():
                TARGET_RESIDENT.labels(*residents.known(name, model)).set(1)

    async def probe(self, name: str) -> None:
        """Ask this one target now."""
        prober = self._probers.get(name)
        if prober is not None:
            await prober.ask_now()

    async def wake_now(self, name: str) -> None:
        """Try to wake this one now. Raises WakeError where it could not even be tried."""
        target, prober = self._targets.get(name), self._probers.get(name)
        if target is None or prober is None or target.config.wake is None:
            raise WakeError("it has no wake action")
        await prober.wake_now(target.config.wake)

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
            sealed = self._secret_box.seal(fields.token, TOKEN.aad(name))
        settings, wake_url = config.settings(), None
        if self._secret_box is not None and config.wake is not None and config.wake.url is not None:
            # Such a URL is often all it takes to switch a machine on.
            wake_url = self._secret_box.seal(config.wake.url, WAKE.aad(name))
            del settings["wake"]["url"]
        created = await store.put_target(
            self._database, name, settings, sealed, keep_token_of=known, wake_url=wake_url
        )
        await self.reload()
        return created

    async def delete(self, name: str) -> bool:
        deleted = await store.delete_target(self._database, name)
        if deleted:
            await self.reload()
            # Those that waited for it are looked at again.
            await self._unpark()
        return deleted

    async def _reload_once(self) -> float | None:
        await self.reload()
        return None

    async def _take_over(self) -> None:
        """What the table says: new, changed and removed targets, and what others found out."""
        wanted: dict[str, tuple[TargetConfig, store.KnownTarget | None]] = {
            name: (config, None) for name, config in self._configured.items()
        }
        for known in await store.list_targets(self._database):
            if known.name in self._configured:
                wanted[known.name] = (self._configured[known.name], known)
            elif known.settings is not None:
                wanted[known.name] = (self._config_of(known, known.settings), known)
        changed = False
        for name in [name for name in self._targets if name not in wanted]:
            changed = True
            del self._targets[name]
            prober = self._probers.pop(name, None)
            if prober is not None:
                await prober.stop()
        for name, (config, row) in wanted.items():
            changed |= await self._adopt(name, config, row)
        if changed:
            self._changed()

    async def _adopt(self, name: str, config: TargetConfig, row: store.KnownTarget | None) -> bool:
        target = self._targets.get(name)
        if target is not None and target.config != config:
            prober = self._probers.pop(name, None)
            if prober is not None:
                await prober.stop()
            target = None
        if target is None:
            target = self._targets[name] = Target(config, self._client, *self._patience)
        known = target.inventory.names if target.inventory else None
        if row is not None:
            # Whoever asked last knows best: what one replica finds out counts for all of them.
            if (
                row.inventory is not None
                and row.answered_at is not None
                and (target.recorded_at is None or row.answered_at > target.recorded_at)
            ):
                target.recorded_at = row.answered_at
                target.inventory = Inventory.from_json(target.dialect, orjson.loads(row.inventory))
                target.answered_at = row.answered_at
            target.resident = row.resident
            if target.warning is None or target.awake:
                target.warning = row.warning
        if name not in self._probers:
            prober = self._probers[name] = Prober(
                target,
                self._database,
                self._guarded,
                interval=self._inventory_seconds,
                serving_lane=self.serving_lane,
                changed=self._changed,
                unpark=self._unpark,
            )
            await prober.start()
            return True
        return known != (target.inventory.names if target.inventory else None)

    def _config_of(self, row: store.KnownTarget, settings: str) -> TargetConfig:
        fields = msgspec.convert(orjson.loads(settings), TargetFields)
        config = TargetConfig.of(row.name, fields, "api")
        wake = config.wake
        # One in the clear was written by a version, or at a time, that could not seal it, and is newer.
        if wake is not None and wake.mac is None and wake.url is None:
            url = self._opened(WAKE, row.name, row.wake_url)
            wake = None if url is None else msgspec.structs.replace(wake, url=url)
        return replace(config, token=self._opened(TOKEN, row.name, row.token), wake=wake)

    def _opened(self, kind: Kind, name: str, sealed: bytes | None) -> str | None:
        if sealed is None or self._secret_box is None:
            return None
        try:
            return self._secret_box.open(sealed, kind.aad(name))
        except SecretBoxError as problem:
            if (name, sealed) not in self._unreadable:
                self._unreadable.add((name, sealed))
                log.warning("target.secret_not_readable", target=name, of=kind.one, problem=str(problem))
            return None

    async def _unpark(self) -> None:
        """Let go of what was held back while targets were asleep, and tell where there is work."""
        self._ready(Changes())
        async for changes in store.unpark(self._database):
            self._ready(changes)

    def _ready(self, changes: Changes[None]) -> None:
        for callback in self._on_ready:
            callback(changes)

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()
