"""AsyncJobHandle: one job in the hand."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from foreman_client.events import Event
from foreman_client.explanation import Explanation
from foreman_client.job import Job

if TYPE_CHECKING:
    from foreman_client.client import AsyncForeman

R = TypeVar("R")


class AsyncJobHandle:
    """What `submit` gives back. Cheap: an id and the client it came from.

    `outcome` is `accepted`, or `coalesced` / `replaced` on queues with keys; `replayed` is true when the
    idempotency key had been used before and this is the job of that time.
    """

    def __init__(
        self, client: "AsyncForeman", job_id: str, outcome: str = "accepted", *, replayed: bool = False
    ) -> None:
        self._client = client
        self.job_id = job_id
        self.outcome = outcome
        self.replayed = replayed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.job_id!r})"

    async def status(self) -> Job:
        """The job as it is now."""
        return await self._client.get(self.job_id)

    async def explain(self) -> Explanation:
        """Why it waits, what it is at, or how it went."""
        return await self._client.explain(self.job_id)

    async def wait(self, timeout: float | None = None) -> Job:
        """The job once it is done; raises JobFailed, JobCancelled, JobExpired …, or WaitTimeout."""
        return await self._client.wait(self.job_id, timeout)

    @overload
    async def result(self, timeout: float | None = None) -> Any: ...
    @overload
    async def result(self, timeout: float | None = None, *, as_type: type[R]) -> R: ...
    async def result(self, timeout: float | None = None, *, as_type: type[R] | None = None) -> Any:
        """Wait, then the result; with `as_type=SomeModel` as that pydantic model."""
        result = (await self.wait(timeout)).result
        return result if as_type is None else validated(as_type, result)

    async def cancel(self, reason: str | None = None) -> Job:
        return await self._client.cancel(self.job_id, reason)

    async def retry(self) -> Job:
        return await self._client.retry(self.job_id)

    async def delete(self) -> None:
        await self._client.delete(self.job_id)

    async def send_event(self, type: str, payload: Any = None) -> int:
        return await self._client.send_event(self.job_id, type, payload)

    def events(
        self, *, after: int = 0, types: Sequence[str] | None = None, follow: bool = True
    ) -> AsyncGenerator[Event, None]:
        return self._client.events(self.job_id, after=after, types=types, follow=follow)

    def stream(self) -> AsyncGenerator[str, None]:
        """A model's answer, piece by piece."""
        return self._client.stream(self.job_id)


def validated(model: type[R], value: Any) -> R:
    """`value` as a pydantic model; any other type must already be it."""
    validate = getattr(model, "model_validate", None)
    if validate is not None:
        made: R = validate(value)
        return made
    if not isinstance(value, model):
        raise TypeError(f"the result is a {type(value).__name__}, not a {model.__name__}")
    return value
