"""The message of a delivery as OpenAI would send it: which response or batch ended, and how.

What came of it is not told: receivers ask for it by its id.
"""

import orjson

from app.jobs.openai_events import WireObject, wire_object
from app.store.outbox import DueDelivery


def told_of(delivery: DueDelivery) -> WireObject:
    """What the delivery is about. Raises ValueError for a job without a name there: none such was let in."""
    found = wire_object(delivery.job_id, delivery.kind, delivery.dialect)
    if found is None:
        raise ValueError("OpenAI's clients have no name for this job")
    return found


def compose_event(delivery: DueDelivery, event_id: str, result: str | None) -> bytes:
    """The body. `result` is only looked at for how a response that is done says that it ended."""
    about = told_of(delivery)
    return orjson.dumps(
        {
            "id": event_id,
            "object": "event",
            "created_at": int(delivery.at.timestamp()),
            "type": about.event_type(delivery.type, result),
            "data": {"id": about.id},
        }
    )
