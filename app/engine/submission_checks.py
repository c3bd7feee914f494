"""What of a submission cannot be judged by its own bytes: URLs by the outbound guard, secrets by ours."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from app.errors import InvalidRequest
from app.executors.http_call import parse_call
from app.jobs.signing import parse_secret
from app.jobs.submission import NewJob, invalid
from app.loops.off_loop import off_loop
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from app.secretbox import SecretBox

# A name that takes longer to resolve is no objection: the delivery checks it again.
RESOLVE_SECONDS = 1.0


class SubmissionChecks:
    def __init__(self, policy: AddressPolicy, client: GuardedClient, box: SecretBox | None) -> None:
        self._policy = policy
        self._client = client
        self._box = box

    async def check(self, jobs: Sequence[NewJob], *, is_batch: bool = False) -> None:
        """Check and complete jobs about to be enqueued. Raises InvalidRequest naming what is wrong."""
        urls: list[tuple[int, str, str]] = []
        for index, job in enumerate(jobs):
            if job.webhook_url is None and job.kind != "http":
                continue
            with _naming(index if is_batch else None):
                checked = await off_loop(len(job.payload), self._check, job)
                urls += [(index, field, url) for field, url in checked]
        if urls:
            refusals = await self._refusals({url for _, _, url in urls})
            for index, field, url in urls:
                if url in refusals:
                    with _naming(index if is_batch else None):
                        raise invalid(field, refusals[url])

    def _check(self, job: NewJob) -> list[tuple[str, str]]:
        """All that needs no name to be resolved; returns the URLs, each with the field it stands in."""
        urls = []
        if job.webhook_url is not None:
            urls.append(("state_webhook_url", job.webhook_url))
        if job.kind == "http":
            urls.append(("payload.url", parse_call(job.payload).url))
        for field, url in urls:
            reason = self._policy.check_url(url)
            if reason is not None:
                raise invalid(field, reason)
        if job.webhook_secret is not None:
            job.sealed_webhook_secret = self._sealed(job.webhook_secret, job.id)
        return urls

    def _sealed(self, secret: str, job_id: str) -> bytes:
        try:
            parse_secret(secret)
        except ValueError as problem:
            raise invalid("webhook_secret", str(problem)) from None
        if self._box is None:
            raise invalid(
                "webhook_secret",
                "cannot be kept safe: this server has no FOREMAN_SECRET_KEY to encrypt it with",
            )
        return self._box.seal(secret, job_id)

    async def _refusals(self, urls: set[str]) -> dict[str, str]:
        ordered = sorted(urls)
        reasons = await asyncio.gather(
            *(self._client.refusal(url, deadline_seconds=RESOLVE_SECONDS) for url in ordered)
        )
        return {url: reason for url, reason in zip(ordered, reasons, strict=True) if reason is not None}


@contextlib.contextmanager
def _naming(index: int | None) -> Iterator[None]:
    """In a batch, an error names the entry it is about."""
    try:
        yield
    except InvalidRequest as problem:
        if index is None:
            raise
        raise InvalidRequest(
            f"jobs[{index}]: {problem.detail}", index=index, errors=problem.extra.get("errors", [])
        ) from problem
