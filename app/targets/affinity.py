"""Which lane a target serves next. Pure.

Priority comes first. At equal priority: a job that has waited longer than the patience goes next; otherwise
what is already resident is served on, because a swap costs more than a turn; otherwise the oldest.

The lines of batches come in model by model, so that first come, first served loads each of them once. Only
what had to begin anew has lost its place among the others of its model: for its sake the lines of the next
model are patient.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.dialects.models import model_key
from app.jobs.batch_lines import PRIORITY as OF_BATCHES
from app.jobs.lanes import parse_llm_lane
from app.store.heads import Head

# What has the lowest priority of all is waited for by nobody; still, no model is kept from its turn for ever.
BATCH_RANK = 2 * OF_BATCHES
BATCH_PATIENCE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Choice:
    head: Head
    # What will be resident when it runs, and whether that means loading it.
    resident: str
    swaps: bool
    # First come, first served would have swapped.
    avoided: bool


def affinity_of(lane: str) -> str:
    """Equal for lanes that need no reload between them: model and runner options."""
    parts = parse_llm_lane(lane)
    return "" if parts is None else f"{model_key(parts.model)} {parts.options}".strip()


def choose(heads: Iterable[Head], resident: str | None, patience_seconds: float) -> Choice | None:
    """The lane to serve next, out of those that the target can serve; None when there is none."""
    candidates = _best_rank(heads)
    if not candidates:
        return None
    by_age = sorted(candidates, key=lambda head: (head.ready_at, head.id, head.lane))
    chosen = oldest = by_age[0]
    if oldest.rank == BATCH_RANK:
        patience_seconds = max(patience_seconds, BATCH_PATIENCE_SECONDS)
    if oldest.waited_seconds <= patience_seconds:
        chosen = next((head for head in by_age if affinity_of(head.lane) == resident), oldest)
    needs = affinity_of(chosen.lane)
    return Choice(
        chosen,
        needs,
        swaps=needs != resident,
        avoided=needs == resident and affinity_of(oldest.lane) != resident,
    )


def _best_rank(heads: Iterable[Head]) -> Sequence[Head]:
    heads = list(heads)
    best = max((head.rank for head in heads), default=0)
    return [head for head in heads if head.rank == best]
