"""What a target has: its models as it names them, what is resident, its version. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from app.dialects import Dialect, Frame, GarbledAnswer, find_model, model_key
from app.dialects.shapes import as_dict, as_list, as_text
from app.targets.config import ECHO_NAME

# What is said to clients that ask, when no target is an Ollama: the version whose wire is spoken here.
OLLAMA_VERSION = "0.33.0"
_NO_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": None,
    "parameter_size": "",
    "quantization_level": "",
}


@dataclass(frozen=True)
class Inventory:
    """As the target said it, in its own dialect."""

    dialect: Dialect
    models: Sequence[Frame] = ()
    running: Sequence[Frame] = ()
    version: str | None = None
    names: Sequence[str] = field(init=False, default=())

    def __post_init__(self) -> None:
        names = [self.name_of(model) for model in self.models]
        object.__setattr__(self, "names", [name for name in names if name])

    def name_of(self, model: Frame) -> str:
        if self.dialect == "openai":
            return as_text(model.get("id"))
        return as_text(model.get("model")) or as_text(model.get("name"))

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
    def from_json(cls, dialect: Dialect, document: Any) -> "Inventory | None":
        if not isinstance(document, dict):
            return None
        return cls(
            dialect,
            _frames(document.get("models")),
            _frames(document.get("running")),
            as_text(document.get("version")) or None,
        )

    @property
    def resident_models(self) -> frozenset[str]:
        return frozenset(
            model_key(as_text(each.get("model")) or as_text(each.get("name"))) for each in self.running
        )


def ollama_inventory(tags: Any, running: Any, version: Any) -> Inventory:
    """From /api/tags, /api/ps and /api/version. Raises GarbledAnswer."""
    if not isinstance(as_dict(tags).get("models"), list):
        raise GarbledAnswer("/api/tags answered no list of models")
    return Inventory(
        "ollama",
        _frames(as_dict(tags).get("models")),
        _frames(as_dict(running).get("models")),
        as_text(as_dict(version).get("version")) or None,
    )


def openai_inventory(models: Any) -> Inventory:
    """From /v1/models. Raises GarbledAnswer."""
    if not isinstance(as_dict(models).get("data"), list):
        raise GarbledAnswer("/v1/models answered no list of models")
    return Inventory("openai", _frames(as_dict(models).get("data")))


def merged_tags(inventories: Iterable[Inventory]) -> Frame:
    """GET /api/tags over all targets: each model once, the first target's word counts."""
    found: dict[str, Frame] = {}
    for inventory in inventories:
        for model in inventory.models:
            found.setdefault(model_key(inventory.name_of(model)), _as_ollama(inventory, model))
    return {"models": list(found.values())}


def merged_running(inventories: Iterable[Inventory]) -> Frame:
    return {"models": [each for inventory in inventories for each in inventory.running]}


def merged_openai(inventories: Iterable[Inventory]) -> Frame:
    """GET /v1/models over all targets."""
    found: dict[str, Frame] = {}
    for inventory in inventories:
        for model in inventory.models:
            found.setdefault(model_key(inventory.name_of(model)), _as_openai(inventory, model))
    return {"object": "list", "data": list(found.values())}


def openai_model(inventories: Iterable[Inventory], name: str) -> Frame | None:
    for inventory in inventories:
        own = inventory.own_name(name)
        for model in inventory.models:
            if own is not None and inventory.name_of(model) == own:
                return {**_as_openai(inventory, model), "id": name}
    return None


def shown(inventories: Iterable[Inventory], name: str) -> Frame | None:
    """POST /api/show, as far as the inventory alone can answer it."""
    for inventory in inventories:
        own = inventory.own_name(name)
        for model in inventory.models:
            if own is not None and inventory.name_of(model) == own:
                entry = _as_ollama(inventory, model)
                return {
                    "modelfile": "",
                    "parameters": "",
                    "template": "",
                    "details": entry["details"],
                    "model_info": {},
                    "capabilities": ["completion"],
                    "modified_at": entry["modified_at"],
                }
    return None


def _as_ollama(inventory: Inventory, model: Frame) -> Frame:
    if inventory.dialect == "ollama":
        return {"details": _NO_DETAILS, "modified_at": _moment(0), **model}
    name = inventory.name_of(model)
    return {
        "name": name,
        "model": name,
        "modified_at": _moment(model.get("created")),
        "size": 0,
        "digest": "",
        "details": _NO_DETAILS,
    }


def _as_openai(inventory: Inventory, model: Frame) -> Frame:
    if inventory.dialect == "openai":
        return model
    return {
        "id": inventory.name_of(model),
        "object": "model",
        "created": _timestamp(model.get("modified_at")),
        "owned_by": "library",
    }


def _moment(timestamp: Any) -> str:
    seconds = timestamp if isinstance(timestamp, int) and 0 <= timestamp < 1 << 36 else 0
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _timestamp(moment: Any) -> int:
    try:
        return int(datetime.fromisoformat(as_text(moment)).timestamp())
    except (ValueError, OverflowError):
        return 0


def _frames(value: Any) -> list[Frame]:
    return [each for each in as_list(value) if isinstance(each, dict)]


ECHO_INVENTORY = Inventory(
    "ollama",
    [
        {
            "name": ECHO_NAME,
            "model": ECHO_NAME,
            "modified_at": "1970-01-01T00:00:00Z",
            "size": 0,
            "digest": "",
            "details": _NO_DETAILS
            | {
                "format": "builtin",
                "family": "echo (built into Foreman: says the last message back)",
                "parameter_size": "0",
            },
        }
    ],
)
