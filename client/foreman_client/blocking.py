"""Foreman and JobHandle: the asynchronous classes over a blocking transport, method by method.

Nothing is written twice: each attribute names the method it blocks on, and a ParamSpec carries that method's
signature over, so editors and type checkers see the real one.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from foreman_client.client import AsyncForeman
from foreman_client.handle import AsyncJobHandle
from foreman_client.transport import Transport, iterate, run

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class _Facade(Generic[P, S]):
    """Calls the method of the same name of `self.core` and makes of its outcome what `adapt` says."""

    def __init__(self, method: Callable[..., Any], adapt: Callable[[Any], S]) -> None:
        self._method = method
        self._adapt = adapt
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "_Facade[P, S]": ...
    @overload
    def __get__(self, instance: Any, owner: type) -> Callable[P, S]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self

        @functools.wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> S:
            return self._adapt(self._method(instance.core, *args, **kwargs))

        return call


def blocking(method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]]) -> _Facade[P, R]:
    return _Facade(method, run)


def iterating(method: Callable[Concatenate[C, P], AsyncGenerator[R, None]]) -> _Facade[P, Iterator[R]]:
    return _Facade(method, iterate)


def handing(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, AsyncJobHandle]],
) -> "_Facade[P, JobHandle]":
    return _Facade(method, lambda coroutine: JobHandle(run(coroutine)))


def _all_handles(coroutine: Coroutine[Any, Any, list[AsyncJobHandle]]) -> "list[JobHandle]":
    return [JobHandle(core) for core in run(coroutine)]


class JobHandle:
    """AsyncJobHandle for code without `await`."""

    def __init__(self, core: AsyncJobHandle) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"JobHandle({self.job_id!r})"

    @property
    def job_id(self) -> str:
        return self.core.job_id

    @property
    def outcome(self) -> str:
        return self.core.outcome

    @property
    def replayed(self) -> bool:
        return self.core.replayed

    # Said out loud, because a ParamSpec cannot carry overloads.
    @overload
    def result(self, timeout: float | None = None) -> Any: ...
    @overload
    def result(self, timeout: float | None = None, *, as_type: type[R]) -> R: ...
    def result(self, timeout: float | None = None, *, as_type: type[Any] | None = None) -> Any:
        """Wait, then the result; with `as_type=SomeModel` as that pydantic model."""
        return run(self.core.result(timeout, as_type=as_type))  # type: ignore[arg-type]

    status = blocking(AsyncJobHandle.status)
    explain = blocking(AsyncJobHandle.explain)
    wait = blocking(AsyncJobHandle.wait)
    cancel = blocking(AsyncJobHandle.cancel)
    retry = blocking(AsyncJobHandle.retry)
    delete = blocking(AsyncJobHandle.delete)
    send_event = blocking(AsyncJobHandle.send_event)
    events = iterating(AsyncJobHandle.events)
    stream = iterating(AsyncJobHandle.stream)


class Foreman:
    """A client for code without `await`; may be shared by threads. All methods are those of AsyncForeman."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retry_seconds: float = 15.0,
        transport_class: type[Transport] | None = None,
    ) -> None:
        if transport_class is None:
            from foreman_client.httpx_transport import BlockingTransport  # noqa: PLC0415  # slow to load

            transport_class = BlockingTransport
        self.core = AsyncForeman(
            url,
            api_key=api_key,
            timeout=timeout,
            retry_seconds=retry_seconds,
            transport_class=transport_class,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return self.core.url

    def job(self, job_id: str) -> JobHandle:
        """A handle for a job that is there already; asks nothing."""
        return JobHandle(self.core.job(job_id))

    submit = handing(AsyncForeman.submit)
    submit_many = _Facade[..., "list[JobHandle]"](AsyncForeman.submit_many, _all_handles)
    get = blocking(AsyncForeman.get)
    explain = blocking(AsyncForeman.explain)
    list_jobs = blocking(AsyncForeman.list_jobs)
    wait = blocking(AsyncForeman.wait)
    cancel = blocking(AsyncForeman.cancel)
    retry = blocking(AsyncForeman.retry)
    delete = blocking(AsyncForeman.delete)
    send_event = blocking(AsyncForeman.send_event)
    read_events = blocking(AsyncForeman.read_events)
    events = iterating(AsyncForeman.events)
    stream = iterating(AsyncForeman.stream)
    server_version = blocking(AsyncForeman.server_version)
    check_version = blocking(AsyncForeman.check_version)
    call = blocking(AsyncForeman.call)
    request = blocking(AsyncForeman.request)
    close = blocking(AsyncForeman.close)
