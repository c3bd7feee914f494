"""Lanes: which claimers may take a job.

A lane is the kind for jobs that any worker of that kind can run, and target + model + runner options
for LLM jobs, so that work for one resident model can be claimed together. Claims walk one lane's part
of the index, so a backlog that this claimer cannot run never stands in its way.
"""

from typing import NamedTuple

from app.jobs.tenants import DEFAULT_TENANT

LLM_KINDS = frozenset({"chat", "generate", "embed"})
BUILTIN_KINDS = frozenset({"noop", "http"})
# Why a queued job waits: no target that could serve it answers.
TARGET_ASLEEP = "target_asleep"
# It could be claimed, but nobody has lately asked for its kind.
NO_WORKER = "no_worker"

# A batch of OpenAI's API: the kind of its own job; the queue that this waits in, and that of its lines.
BATCH = "batch"
BATCHES = "batches"
BATCH_LINES = "batch-lines"
# No kind has such a name: workers of somebody's own kind `batch` go on getting theirs.
BATCH_LANE = "foreman|batch"

_MARK = "llm"
_SEPARATOR = "|"
_AFTER_SLASH = chr(ord("/") + 1)
# Before and behind the name of every lane; and of those for LLM jobs.
ALL_LANES = ("", "\U0010ffff")
LLM_LANES = (f"{_MARK}{_SEPARATOR}", f"{_MARK}{chr(ord(_SEPARATOR) + 1)}")


class LlmLane(NamedTuple):
    """The parts of an LLM lane. `target` is empty unless the job is pinned to one."""

    target: str
    options: str
    model: str


def llm_lane(model: str, options: str = "", target: str | None = None) -> str:
    # The model comes last: it is the caller's text and may itself contain the separator.
    return _SEPARATOR.join((_MARK, target or "", options, model))


def parse_llm_lane(lane: str) -> LlmLane | None:
    parts = lane.split(_SEPARATOR, 3)
    if parts[0] != _MARK or len(parts) != 4:
        return None
    return LlmLane(parts[1], parts[2], parts[3])


def kind_lane(kind: str, tenant: str = DEFAULT_TENANT) -> str:
    """A kind of one tenant: its workers claim nobody else's."""
    return kind if tenant == DEFAULT_TENANT else f"{tenant}/{kind}"


def lanes_of(tenant: str) -> tuple[str, str]:
    """Between which two all kinds of a tenant lie; those of the default one lie among all others."""
    return ALL_LANES if tenant == DEFAULT_TENANT else (f"{tenant}/", f"{tenant}{_AFTER_SLASH}")


def kind_of(lane: str) -> str:
    """The kind of such a lane. Neither kinds nor tenants have a slash."""
    return lane.rpartition("/")[2]


def worker_tenant(lane: str) -> str | None:
    """Whose workers may take jobs of this lane; None for what Foreman runs itself."""
    if parse_llm_lane(lane) is not None or lane == BATCH_LANE or kind_of(lane) in BUILTIN_KINDS:
        return None
    tenant, _, _ = lane.rpartition("/")
    return tenant or DEFAULT_TENANT
