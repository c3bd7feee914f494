"""A route is declared once: method, path, scope, what it takes and answers, if it is hot or a stream.

Everything else about it is derived from the declaration: how it is mounted (app/api/mount.py), its part of
the OpenAPI document (app/api/document.py), its name in the metrics, and who may call it.

An ordinary route is written as FastAPI's users know it: typed parameters, `Depends`, and a `msgspec.Struct`
as its answer. A hot route and a stream take the bare `Request` and answer the ASGI way, because the
framework's machinery costs more than they do (docs/decisions/0014); they decode and encode the same shapes.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack, get_args, get_origin

from fastapi.params import Depends

from app.api.parameters import JsonBody
from app.identity.scopes import Scope

JSON = "application/json"

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
Document_co = TypeVar("Document_co", covariant=True)


class Access(StrEnum):
    """What a route asks of its callers where that is no scope of a key."""

    # Nothing: no key is looked at.
    OPEN = "open"
    # Any key that is valid.
    ANY_KEY = "any_key"


Allowed = Scope | Access


@dataclass(frozen=True, slots=True)
class AnswerHeader:
    name: str
    description: str = ""
    shape: Any = str


ETAG = AnswerHeader("ETag")
LINK = AnswerHeader("Link", 'The next page, rel="next".')
LOCATION = AnswerHeader("Location")


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several shapes; msgspec has no type for that unless they are tagged."""

    shapes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """One of the answers of a route; without a shape it has no body."""

    description: str
    shape: Any = None
    headers: tuple[AnswerHeader, ...] = ()
    media_type: str = JSON
    # Media types that say the same as text, piece by piece.
    streams_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Errors:
    """How the errors of a group of routes look, and what each status means there."""

    shape: Any
    media_type: str
    words: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Content:
    """The body that a route takes."""

    shape: Any
    media_type: str = JSON
    required: bool = True


@dataclass(frozen=True, slots=True)
class Answer(Generic[Document_co]):
    """A document with a status or headers of its own; one without is simply returned."""

    document: Document_co
    status: int | None = None
    headers: dict[str, str] | None = None


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    endpoint: Callable[..., Awaitable[Any]]
    _: KW_ONLY
    scope: Allowed
    tag: str
    summary: str
    responses: Mapping[int, Reply]
    errors: tuple[int, ...] = ()
    error_style: Errors | None = None
    request: Content | None = None
    # A function whose signature declares what a route reads from its bare request by itself.
    parameters: Callable[..., Any] | None = None
    hot: bool = False
    stream: bool = False
    # Methods that are answered in the same way, but not described.
    also: tuple[str, ...] = ()
    documented: bool = True

    @property
    def is_direct(self) -> bool:
        """Whether it takes the bare request."""
        return self.hot or self.stream

    @cached_property
    def needs(self) -> Scope | None:
        """The scope that a key must have."""
        return self.scope if isinstance(self.scope, Scope) else None

    @cached_property
    def path_format(self) -> str:
        """The path as the document and the metrics write it."""
        return re.sub(r"{([a-z_]+):[a-z]+}", r"{\1}", self.path)

    @cached_property
    def status(self) -> int:
        """Of a plain answer: the first that is declared."""
        return next(iter(self.responses), 200)


class More(TypedDict, total=False):
    """What else may be said of a route; see Route."""

    # Beside those that any such route may answer (see `_errors`).
    errors: tuple[int, ...]
    # Only where the handler's signature does not say it.
    request: Content | None
    parameters: Callable[..., Any]
    hot: bool
    stream: bool
    also: tuple[str, ...]
    documented: bool


# What it answers: in words, if the handler's signature says the shape; otherwise by status, or 200 alone.
Replies = str | Reply | Mapping[int, Reply]


class Declare(Protocol):
    def __call__(self, endpoint: Handler, /) -> Handler: ...


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one file."""

    tag: str
    error_style: Errors | None = None
    declared: list[Route] = field(default_factory=list)

    def __iter__(self) -> Iterator[Route]:
        return iter(self.declared)

    def get(self, path: str, scope: Allowed, summary: str, replies: Replies, **more: Unpack[More]) -> Declare:
        return self._declare("GET", path, scope, summary, replies, **more)

    def post(
        self, path: str, scope: Allowed, summary: str, replies: Replies, **more: Unpack[More]
    ) -> Declare:
        return self._declare("POST", path, scope, summary, replies, **more)

    def put(self, path: str, scope: Allowed, summary: str, replies: Replies, **more: Unpack[More]) -> Declare:
        return self._declare("PUT", path, scope, summary, replies, **more)

    def delete(
        self, path: str, scope: Allowed, summary: str, replies: Replies, **more: Unpack[More]
    ) -> Declare:
        return self._declare("DELETE", path, scope, summary, replies, **more)

    def _declare(
        self,
        method: str,
        path: str,
        scope: Allowed,
        summary: str,
        replies: Replies,
        **more: Unpack[More],
    ) -> Declare:
        def declare(endpoint: Handler) -> Handler:
            said: More = {"request": _body_of(endpoint), **more}
            said["errors"] = self._errors(scope, said)
            self.declared.append(
                Route(
                    method,
                    path,
                    endpoint,
                    scope=scope,
                    tag=self.tag,
                    summary=summary,
                    responses=_responses(endpoint, replies),
                    error_style=self.error_style,
                    **said,
                )
            )
            return endpoint

        return declare

    def _errors(self, scope: Allowed, said: More) -> tuple[int, ...]:
        """Beside its own: no key, not this key, too much; the database away; a body that cannot be taken."""
        errors = {*said.get("errors", ())}
        if scope is not Access.OPEN:
            errors |= {401, 429} | ({403} if isinstance(scope, Scope) else set())
        if self.error_style is None:
            if scope is not Access.OPEN:
                errors.add(503)
            body = said["request"]
            if body is not None:
                errors |= {400, 413, 422} if body.media_type == JSON else {413, 422}
        return tuple(sorted(errors))


def _responses(endpoint: Callable[..., Any], replies: Replies) -> Mapping[int, Reply]:
    if isinstance(replies, str):
        shape = inspect.signature(endpoint).return_annotation
        replies = Reply(replies, get_args(shape)[0] if get_origin(shape) is Answer else shape)
    return {200: replies} if isinstance(replies, Reply) else replies


def _body_of(endpoint: Callable[..., Any]) -> Content | None:
    """What the handler's own signature says of the body."""
    for parameter in inspect.signature(endpoint).parameters.values():
        for said in get_args(parameter.annotation)[1:]:
            if isinstance(said, Depends) and isinstance(said.dependency, JsonBody):
                return Content(said.dependency.shape, required=said.dependency.required)
    return None
