"""AsyncForeman: everything a caller can ask of a Foreman server, written once.

`Foreman` (blocking.py) is this same class over a blocking transport; see transport.py for how.
"""

import os
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Self, TypedDict, Unpack

from foreman_client import __version__
from foreman_client.compatibility import ServerVersion, VersionMismatchWarning, lacks_route, warn_once
from foreman_client.context import RunningJob, running_job
from foreman_client.errors import ApiError, ForemanError, RateLimited, Unavailable, Unreachable, WaitTimeout
from foreman_client.events import Event, ServerSentEvents
from foreman_client.explanation import Explanation
from foreman_client.handle import AsyncJobHandle
from foreman_client.job import Job, JobPage
from foreman_client.retrying import policy
from foreman_client.submission import JobOptions, hand_down, job_body, wire_value
from foreman_client.tracing import trace_headers
from foreman_client.transport import Transport
from foreman_client.wire import EVENT_STREAM_TYPE, JSON_TYPE, Reply, Request, encode, error_from, plain

DEFAULT_URL = "http://127.0.0.1:8080"
# One long poll; well below the time-outs of proxies.
HOLD_SECONDS = 25.0


class JobFilters(TypedDict, total=False):
    """Which jobs `list_jobs` is to list; `since` and `until` are times of creation."""

    state: str | Sequence[str] | None
    queue: str | None
    kind: str | None
    model: str | None
    since: datetime | str | None
    until: datetime | str | None
    limit: int | None
    cursor: str | None


Query = Mapping[str, str | int | float | Sequence[str] | None]


class AsyncForeman:
    """A client for asyncio. Address and key come from FOREMAN_URL and FOREMAN_API_KEY when not given.

    `retry_seconds` bounds how long a call is repeated while the server is away or says "later"; 0 turns
    repeating off. Close it, or use it as `async with AsyncForeman() as foreman`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retry_seconds: float = 15.0,
        transport_class: type[Transport] | None = None,
    ) -> None:
        self.url = (url or os.environ.get("FOREMAN_URL") or DEFAULT_URL).rstrip("/")
        self.retry_seconds = retry_seconds
        headers = {"User-Agent": f"foreman-client/{__version__}", "Accept": JSON_TYPE}
        if key := api_key or os.environ.get("FOREMAN_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        if transport_class is None:
            from foreman_client.httpx_transport import AwaitedTransport  # noqa: PLC0415  # slow to load

            transport_class = AwaitedTransport
        self.transport: Transport = transport_class(self.url, headers, timeout)  # type: ignore[call-arg]
        # What was found out when an answer made no sense; None before.
        self._server: ServerVersion | None = None
        self._asked_version = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    # --- jobs ----------------------------------------------------------------------------------------------

    async def submit(
        self,
        kind: str = "chat",
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncJobHandle:
        """Hand in a job and get a handle at once; the job is safe from then on.

        `submit(model="echo", messages=[…])` is a chat; `submit("my_kind", {…})` is for a worker. Sent again
        by itself when the connection fails: an idempotency key, made up unless given, keeps it one job.
        """
        parent = running_job()
        body = job_body(kind, payload, options, parent)
        reply = await self._enqueue("/jobs", body, idempotency_key, parent)
        return self._handle(
            await self._having(reply, "job_id"), replayed=reply.headers.get("idempotency-replayed") == "true"
        )

    async def submit_many(
        self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[AsyncJobHandle]:
        """Up to 1000 jobs in one commit, all or none; each entry is a body of `POST /jobs`."""
        parent = running_job()
        body = {"jobs": [hand_down(entry, parent) for entry in jobs]}
        reply = await self._enqueue("/jobs/batch", body, idempotency_key, parent)
        return [self._handle(answer) for answer in (await self._having(reply, "jobs"))["jobs"]]

    async def _enqueue(
        self, path: str, body: Mapping[str, Any], key: str | None, parent: RunningJob | None
    ) -> Reply:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex, **trace_headers(parent)}
        return await self.request("POST", path, body=body, headers=headers, repeatable=True)

    def job(self, job_id: str) -> AsyncJobHandle:
        """A handle for a job that is there already; asks nothing."""
        return AsyncJobHandle(self, job_id)

    async def get(self, job_id: str, *, hold_seconds: float = 0.0) -> Job:
        """The job as it is, or held back until it has ended or `hold_seconds` are over."""
        query = {"wait": f"{hold_seconds:g}"} if hold_seconds else {}
        reply = await self.request("GET", f"/jobs/{job_id}", query=query, hold_seconds=hold_seconds)
        return Job.from_wire(await self._having(reply, "job_id", "state"))

    async def explain(self, job_id: str) -> Explanation:
        """Why the job waits, what it is at, or how it went."""
        reply = await self.request("GET", f"/jobs/{job_id}/explain")
        return Explanation.from_wire(await self._having(reply, "state", "because"))

    async def list_jobs(
        self, *, metadata: Mapping[str, str] | None = None, **filters: Unpack[JobFilters]
    ) -> JobPage:
        """One page, newest first."""
        query: dict[str, Any] = {name: wire_value(value) for name, value in filters.items()}
        query.update({f"metadata.{name}": value for name, value in (metadata or {}).items()})
        page = await self._having(await self.request("GET", "/jobs", query=query), "jobs")
        return JobPage([Job.from_wire(job) for job in page["jobs"]], page.get("next_cursor"))

    async def cancel(self, job_id: str, reason: str | None = None) -> Job:
        """Ask for the job to stop. A running one is told; look at the state, or wait."""
        body = {"reason": reason} if reason else {}
        reply = await self.request("POST", f"/jobs/{job_id}/cancel", body=body, repeatable=True)
        return Job.from_wire(await self._having(reply, "job_id", "state"))

    async def retry(self, job_id: str) -> Job:
        """Revive a failed job: attempts start over, the id stays."""
        reply = await self.request("POST", f"/jobs/{job_id}/retry", body={})
        return Job.from_wire(await self._having(reply, "job_id", "state"))

    async def delete(self, job_id: str) -> None:
        """Remove a job that has ended, with all it owns."""
        await self.request("DELETE", f"/jobs/{job_id}", repeatable=True)

    async def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """The job once it is done; its typed error if it ended otherwise, WaitTimeout if it has not ended."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left = HOLD_SECONDS if ends_at is None else max(0.0, ends_at - time.monotonic())
            job = await self.get(job_id, hold_seconds=min(left, HOLD_SECONDS))
            if job.terminal:
                return job.raise_unless_done()
            if ends_at is not None and time.monotonic() >= ends_at:
                raise WaitTimeout(f"job {job_id} is still {job.state} after {timeout:g} s")

    # --- events --------------------------------------------------------------------------------------------

    async def send_event(self, job_id: str, type: str, payload: Any = None) -> int:
        """Tell the running worker something; answers the event's seq. JobTerminal if the job has ended."""
        reply = await self.request("POST", f"/jobs/{job_id}/events", body={"type": type, "payload": payload})
        return int((await self._having(reply, "seq"))["seq"])

    async def read_events(
        self,
        job_id: str,
        *,
        after: int = 0,
        types: Sequence[str] | None = None,
        hold_seconds: float = 0.0,
    ) -> tuple[list[Event], int]:
        """Events past `after`, and the watermark to go on from."""
        query: Query = {
            "after": after,
            "types": ",".join(types) if types else None,
            "wait": f"{hold_seconds:g}" if hold_seconds else None,
        }
        path = f"/jobs/{job_id}/events"
        reply = await self.request("GET", path, query=query, hold_seconds=hold_seconds)
        page = await self._having(reply, "events", "next_after")
        return [Event.from_wire(event) for event in page["events"]], int(page["next_after"])

    async def events(
        self, job_id: str, *, after: int = 0, types: Sequence[str] | None = None, follow: bool = True
    ) -> AsyncGenerator[Event, None]:
        """All events, then live until the job ends; a dropped connection is picked up where it broke off."""
        job: Job | None = None
        failed_since: float | None = None
        while follow and not (job and job.terminal):
            try:
                async with aclosing(self._one_stream(job_id, after, types)) as stream:
                    async for event in stream:
                        failed_since = None
                        after = event.seq
                        yield event
            except (Unreachable, Unavailable, RateLimited) as error:
                failed_since = failed_since or time.monotonic()
                pause = getattr(error, "retry_after", None) or 0.2
                if time.monotonic() + pause - failed_since > self.retry_seconds:
                    raise
                await self.transport.sleep(pause)
            # The job has ended, or the server is going away. Not told by the last event: a revived job has
            # a terminal event in the middle of its log, and a filter may hide the last one.
            job = await self.get(job_id)
        while job is None or after < job.seq:
            events, watermark = await self.read_events(job_id, after=after, types=types)
            for event in events:
                yield event
            if watermark <= after:
                return
            after = watermark

    async def _one_stream(
        self, job_id: str, after: int, types: Sequence[str] | None
    ) -> AsyncGenerator[Event, None]:
        query = [("after", str(after))] + ([("types", ",".join(types))] if types else [])
        request = Request("GET", f"/jobs/{job_id}/events", query, {"Accept": EVENT_STREAM_TYPE})
        async with self.transport.stream(request) as reply:
            if reply.status >= 400:
                whole = Reply(reply.status, reply.headers, await reply.read())
                raise await self.refusal(whole, request.path)
            parser = ServerSentEvents()
            async for chunk in reply.chunks():
                for event in parser.feed(chunk):
                    yield event

    async def stream(self, job_id: str) -> AsyncGenerator[str, None]:
        """The text of a model's answer as it is made; ends with the typed error if the job does."""
        streamed = False
        async with aclosing(self.events(job_id)) as events:
            async for event in events:
                if text := event.text:
                    streamed = True
                    yield text
        job = (await self.get(job_id)).raise_unless_done()
        if not streamed and job.text:
            yield job.text

    # --- versions ------------------------------------------------------------------------------------------

    async def server_version(self) -> ServerVersion:
        """Which version the server is, and which versions of this client it was made for."""
        reply = await self.request("GET", "/version")
        return ServerVersion.from_wire(reply.having("version"))

    async def check_version(self) -> ServerVersion:
        """The same, and a VersionMismatchWarning if the two were not made for each other."""
        server = await self.server_version()
        if server.mismatch is not None:
            warn_once(server.mismatch)
        return server

    async def _explain(self, error: ApiError) -> None:
        """An answer makes no sense. If versions may be to blame, warn of it, and note it with the error.

        The server is asked for its version once, and only here: what goes well costs no request more.
        """
        if not self._asked_version:
            self._asked_version = True
            with suppress(ForemanError):
                reply = await self.transport.send(Request("GET", "/version"))
                if reply.status == 200:
                    self._server = ServerVersion.from_wire(reply.having("version"))
        if self._server is not None and (mismatch := self._server.mismatch) is not None:
            error.add_note(mismatch)
            # The error is what counts, also for whoever makes errors of warnings.
            with suppress(VersionMismatchWarning):
                warn_once(mismatch)

    # --- any route -----------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, *, query: Query | None = None, body: Any = None) -> Any:
        """Any route by its path, `await foreman.call("GET", "/queues")`; answers decoded JSON."""
        reply = await self.request(method, path, query=query, body=body)
        try:
            return reply.json()
        except ApiError as error:
            await self._explain(error)
            raise

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        hold_seconds: float = 0.0,
    ) -> Reply:
        """One call with repeats; raises the typed error for any answer of 400 and above."""
        sent = dict(headers or {})
        if body is not None:
            content = encode(body if isinstance(body, (Mapping, list)) else plain(body))
            sent["Content-Type"] = JSON_TYPE
        safe = repeatable if repeatable is not None else method in {"GET", "HEAD", "PUT", "DELETE"}
        request = Request(method, path, _pairs(query or {}), sent, content, safe, hold_seconds)
        retrying = policy(self.transport.sleep, repeatable=safe, budget_seconds=self.retry_seconds)
        reply: Reply = await retrying(self._attempt, request)
        return reply

    async def _attempt(self, request: Request) -> Reply:
        reply = await self.transport.send(request)
        if reply.status >= 400:
            raise await self.refusal(reply, request.path)
        return reply

    async def refusal(self, reply: Reply, path: str) -> ApiError:
        """The typed error for a reply of 400 and above."""
        error = error_from(reply, path)
        if lacks_route(error, path):
            await self._explain(error)
        return error

    async def _having(self, reply: Reply, *names: str) -> dict[str, Any]:
        try:
            return reply.having(*names)
        except ApiError as error:
            await self._explain(error)
            raise

    def _handle(self, answer: Mapping[str, Any], *, replayed: bool = False) -> AsyncJobHandle:
        return AsyncJobHandle(self, answer["job_id"], answer.get("outcome", "accepted"), replayed=replayed)


def _pairs(query: Query) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        if value is None:
            continue
        values = [str(value)] if isinstance(value, (str, int, float)) else value
        pairs += [(name, one) for one in values]
    return pairs
