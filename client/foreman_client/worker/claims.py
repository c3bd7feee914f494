"""Asks for work: one claim at a time, for as many jobs as there are free slots, held open while none come."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from foreman_client import __version__
from foreman_client.client import AsyncForeman
from foreman_client.errors import Forbidden, ForemanError, InvalidRequest, NotFound, Unauthorized
from foreman_client.wire import JSON_TYPE, Request, encode
from foreman_client.worker.backoff import Backoff

log = logging.getLogger("foreman_client.worker")

MAX_CLAIM: Final = 1000
VERBATIM: Final = ("payload", "result", "error", "progress", "usage", "metadata")
# Of each job only what it takes to run it: what ActiveJob shows. An older server sends the whole of it.
MINIMAL: Final = "return=minimal"


class Claimer:
    def __init__(
        self,
        client: AsyncForeman,
        *,
        worker: str,
        queues: Sequence[str],
        kinds: Sequence[str],
        lease_seconds: float,
        wait_seconds: float,
        concurrency: int,
    ) -> None:
        self._client = client
        self._wait_seconds = wait_seconds
        self._fixed: dict[str, Any] = {
            "worker": worker,
            "queues": list(queues),
            "kinds": list(kinds),
            "lease_seconds": lease_seconds,
            "wait_seconds": wait_seconds,
            # For operators to see; the server does not act on them.
            "concurrency": concurrency,
            "version": f"foreman-client/{__version__}",
        }
        self._backoff = Backoff()
        self._welcome = False

    async def claim(self, limit: int) -> list[dict[str, Any]]:
        """Jobs, or none when the wait was in vain or the server is away (after a pause)."""
        try:
            jobs = await self._ask(min(limit, MAX_CLAIM))
        except (Unauthorized, Forbidden, NotFound, InvalidRequest):
            # Before the first success this is a wrong setting, and waiting will not mend it.
            if not self._welcome:
                raise
            await self._pause("the server refuses to give out jobs")
        except ForemanError as error:
            await self._pause(str(error), getattr(error, "retry_after", None))
        else:
            if self._backoff.failures:
                log.info("claiming again after %d failed tries", self._backoff.failures)
                self._backoff.reset()
            self._welcome = True
            return jobs
        return []

    async def _ask(self, limit: int) -> list[dict[str, Any]]:
        request = Request(
            "POST",
            "/claims",
            headers={"Content-Type": JSON_TYPE, "Prefer": MINIMAL},
            content=encode({**self._fixed, "limit": limit}),
            hold_seconds=self._wait_seconds,
        )
        reply = await self._client.transport.send(request)
        if reply.status >= 400:
            raise await self._client.refusal(reply, request.path)
        minimal = reply.headers.get("preference-applied") == MINIMAL
        jobs: list[dict[str, Any]] = reply.having("jobs", foreign=_payloads if minimal else _verbatim)["jobs"]
        return jobs

    async def _pause(self, why: str, asked: float | None = None) -> None:
        if self._backoff.failures == 0:
            log.warning("cannot claim, keeping on: %s", why)
        await asyncio.sleep(self._backoff.next(asked))


def _verbatim(answer: Any) -> Any:
    """What callers and workers wrote: a small part of a claimed job; the rest need not be gone through."""
    return [[job.get(name) for name in VERBATIM] for job in _jobs(answer)]


def _payloads(answer: Any) -> Any:
    """The same of the short form, in which nothing else has numbers of theirs."""
    return [job.get("payload") for job in _jobs(answer)]


def _jobs(answer: Any) -> list[dict[str, Any]]:
    jobs = answer.get("jobs") if isinstance(answer, dict) else None
    return [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
