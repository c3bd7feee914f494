"""What a target has: its models as it names them, what is resident, its version. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.dialects import TARGET_DIALECTS
from app.dialects.facts import ModelFacts
from app.dialects.models import find_model, model_key
from app.dialects.protocol import TargetDialect
from app.dialects.shapes import Frame, as_count, as_frames, as_text
from app.targets.config import ECHO_NAME


class Resident(msgspec.Struct, kw_only=True):
    """A model that is in a target's memory."""

    model: str
    size_bytes: Annotated[int, Meta(ge=0)] | None
    vram_bytes: Annotated[int | None, Meta(description="How much of it is in the memory of the GPU.")]
    unloads_at: Annotated[datetime, Meta(tz=True)] | None


def _resident(model: str, said: Frame) -> Resident:
    return Resident(
        model=model,
        size_bytes=as_count(said.get("size")) or None,
        vram_bytes=as_count(said.get("size_vram")) or None,
        unloads_at=_moment(as_text(said.get("expires_at"))),
    )


def _moment(text: str) -> datetime | None:
    """Whatever a target writes there."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Inventory:
    """As the target said it, in its own dialect."""

    dialect: TargetDialect
    models: Sequence[Frame] = ()
    running: Sequence[Frame] = ()
    version: str | None = None
    names: Sequence[str] = field(init=False, default=())

    def __post_init__(self) -> None:
        names = [self.dialect.model_name(model) for model in self.models]
        object.__setattr__(self, "names", [name for name in names if name])

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(model_key(name) for name in self.names)

    def serves(self, model: str) -> bool:
        return model_key(model) in self._keys

    def own_name(self, model: str) -> str | None:
        """The target's own spelling."""
        return find_model(model, self.names)

    def as_json(self) -> dict[str, Any]:
        return {"models": list(self.models), "running": list(self.running), "version": self.version}

    @classmethod
    def from_json(cls, dialect: TargetDialect, document: Any) -> "Inventory | None":
        if not isinstance(document, dict):
            return None
        models, running = as_frames(document.get("models")), as_frames(document.get("running"))
        return cls(dialect, models, running, as_text(document.get("version")) or None)

    @property
    def resident_models(self) -> frozenset[str]:
        return frozenset(model_key(self.dialect.model_name(each)) for each in self.running)

    @property
    def residents(self) -> list["Resident"]:
        """What is in memory, as far as the target says so."""
        return [_resident(self.dialect.model_name(each), each) for each in self.running]

    def running_at(self, now: datetime, told_at: datetime | None) -> list[Frame]:
        """Without what is to be gone by now, unless it was past its time already when it was told."""
        kept = []
        for each in self.running:
            gone_at = _moment(as_text(each.get("expires_at")))
            if gone_at is None or gone_at > now or (told_at is not None and gone_at <= told_at):
                kept.append(each)
        return kept

    def entry(self, model: Frame, reader: TargetDialect) -> Frame:
        """One of its models, as another dialect lists it."""
        own = model if reader is self.dialect else None
        return reader.model_entry(self.dialect.model_name(model), self.dialect.model_created(model), own)


def merged_models(inventories: Iterable[Inventory], reader: TargetDialect) -> Frame:
    """The list of all targets' models: each once, the first target's word counts."""
    found: dict[str, Frame] = {}
    for inventory in inventories:
        for model in inventory.models:
            key = model_key(inventory.dialect.model_name(model))
            if key not in found:
                found[key] = inventory.entry(model, reader)
    return reader.models_list(list(found.values()))


def model_entry(inventories: Iterable[Inventory], name: str, reader: TargetDialect) -> Frame | None:
    """A single model, as it stands in the list."""
    found = _find(inventories, name)
    return None if found is None else found[0].entry(found[1], reader)


def model_facts(inventories: Iterable[Inventory], name: str) -> ModelFacts:
    """What the same target tells of it."""
    found = _find(inventories, name)
    return ModelFacts() if found is None else found[0].dialect.model_facts(found[1])


def _find(inventories: Iterable[Inventory], name: str) -> tuple[Inventory, Frame] | None:
    for inventory in inventories:
        own = inventory.own_name(name)
        for model in inventory.models:
            if own is not None and inventory.dialect.model_name(model) == own:
                return inventory, model
    return None


_ECHO = TARGET_DIALECTS["ollama"].model_entry(ECHO_NAME, 0, None)
_ECHO["details"] = {
    **_ECHO["details"],
    "format": "builtin",
    "family": "echo (built into Foreman: says the last message back)",
    "parameter_size": "0",
}
ECHO_INVENTORY = Inventory(TARGET_DIALECTS["ollama"], [_ECHO])
