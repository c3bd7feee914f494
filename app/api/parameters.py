"""What handlers of ordinary routes ask for in their signatures."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

from fastapi import Depends, Path
from fastapi.params import Query
from starlette.requests import Request

from app.api.direct import read_body
from app.api.services import Services, account_of, services_of, tenant_of
from app.errors import ForemanError
from app.identity.account import Account
from app.jobs.shapes import decode
from app.jobs.submission import NAME, invalid, is_name
from app.loops.off_loop import off_loop

NAME_PATTERN = NAME.removesuffix(r"\Z") + "$"


async def _services(request: Request) -> Services:
    # Asynchronous although it waits for nothing: FastAPI runs a plain function in a thread.
    return services_of(request)


async def _tenant(request: Request) -> str:
    return tenant_of(request)


async def _account(request: Request) -> Account:
    return account_of(request)


Caller = Annotated[Account, Depends(_account)]
Server = Annotated[Services, Depends(_services)]
Tenant = Annotated[str, Depends(_tenant)]

# Described, not checked: what has another name is simply not there, or is refused in words of its own.
NameInPath = Annotated[str, Path(json_schema_extra={"pattern": NAME_PATTERN})]


def name_or(refusal: Callable[[], ForemanError]) -> Any:
    """A dependency, and so looked at before the body is read: the name in the path, if it can be one."""

    async def name_in_path(name: NameInPath) -> str:
        if not is_name(name):
            raise refusal()
        return name

    return Depends(name_in_path)


class JsonBody:
    """A dependency: the body, decoded as this shape; a large one where it holds nobody up."""

    def __init__(
        self, shape: Any, *, parse: Callable[[bytes, int], Any] | None = None, required: bool = True
    ) -> None:
        """`parse` is for what `decode` cannot do. A body that is not required may be empty, and then is a
        shape of nothing but defaults."""
        self.shape = shape
        self.required = required
        self._parse = parse or self._decode

    def _decode(self, body: bytes, max_depth: int) -> Any:
        return decode(body, self.shape, max_depth)

    async def __call__(self, request: Request) -> Any:
        body = await read_body(request)
        if not self.required and not body.strip():
            return self.shape()
        return await off_loop(len(body), self._parse, body, services_of(request).settings.max_json_depth)


def query_names(declared: Callable[..., Any]) -> frozenset[str]:
    """What the function that declares the parameters of a direct route takes from the query."""
    return frozenset(
        said.alias or parameter.name
        for parameter in inspect.signature(declared).parameters.values()
        for said in get_args(parameter.annotation)[1:]
        if isinstance(said, Query)
    )


class KnownFilters:
    """A dependency: refuses filters that the route does not declare; a slip must not be answered with all."""

    def __init__(self, *, prefix: str | None = None) -> None:
        """Whatever begins with `prefix` is known, too."""
        self._prefix = prefix

    async def __call__(self, request: Request) -> None:
        known: frozenset[str] = request.scope["route"].query_names
        for name, value in request.query_params.multi_items():
            if name not in known and not (self._prefix and name.startswith(self._prefix)):
                raise invalid(name, "is not a known filter")
            if "\0" in value or "\0" in name:
                raise invalid(name.replace("\0", ""), "has a NUL character")
