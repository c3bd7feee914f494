"""The OpenAPI document, from the declarations of the routes and the shapes that they name.

FastAPI writes what it knows from signatures: paths, ids, parameters. Bodies and answers are shapes of
msgspec, and are written here.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from app.api.job_documents import Problem
from app.api.routes import Access, AnyOf, Content, Errors, Reply, Route

Json = dict[str, Any]

PROBLEMS = Errors(
    Problem,
    "application/problem+json",
    {
        400: "Unparsable",
        401: "A valid API key is needed",
        403: "The key may not do that",
        404: "There is no such thing",
        408: "Sent too slowly",
        409: "Its state does not allow that",
        413: "Body too large",
        416: "There are no such bytes",
        422: "Well-formed but wrong",
        429: "Full, or too many requests",
        503: "Not available right now",
    },
)
# What the document calls the way in which a key is sent.
KEY = "key"
_REF = "#/components/schemas/{name}"
# A body of bytes, whatever they mean; msgspec would describe them as base64.
_BINARY: Json = {"type": "string", "format": "binary"}


def describe(document: Json, routes: Iterable[Route], also: Sequence[Any] = ()) -> None:
    """Put bodies, answers and their shapes into FastAPI's document; `also` are shapes that no route names."""
    described = [route for route in routes if route.documented]
    shapes = _Shapes([*also, *(shape for route in described for shape in _shapes_of(route))])
    for route in described:
        operation = document["paths"][route.path_format][route.method.lower()]
        operation.pop("description", None)
        _tidy_parameters(operation)
        if route.request is not None:
            operation["requestBody"] = _request(route.request, shapes)
        operation["responses"] = _responses(route, route.error_style or PROBLEMS, shapes)
        _secure(operation, route)
    # The shapes of FastAPI's own refusals, which are never sent here.
    components = document.setdefault("components", {})
    components["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer", "bearerFormat": "fmn_…"}}
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(shapes.components)


def _secure(operation: Json, route: Route) -> None:
    """Which key it takes. OpenAPI lets a bearer's scopes be named since 3.1."""
    operation["security"] = (
        [] if route.scope is Access.OPEN else [{KEY: [route.needs] if route.needs else []}]
    )


class _Shapes:
    """The schemas of all shapes: references to named ones, the rest in place."""

    def __init__(self, shapes: Sequence[Any]) -> None:
        known = [shape for shape in dict.fromkeys(shapes) if shape is not bytes]
        schemas, components = msgspec.json.schema_components(known, ref_template=_REF)
        self._schemas = {shape: _tidy(schema) for shape, schema in zip(known, schemas, strict=True)}
        self.components = {name: _tidy(schema) for name, schema in components.items()}

    def __getitem__(self, shape: Any) -> Json:
        if isinstance(shape, AnyOf):
            return {"anyOf": [self[each] for each in shape.shapes]}
        return _BINARY if shape is bytes else self._schemas[shape]


def _shapes_of(route: Route) -> Iterator[Any]:
    if route.request is not None:
        yield route.request.shape
    for reply in route.responses.values():
        if isinstance(reply.shape, AnyOf):
            yield from reply.shape.shapes
        elif reply.shape is not None:
            yield reply.shape
        for header in reply.headers:
            yield header.shape
    yield (route.error_style or PROBLEMS).shape


def _request(content: Content, shapes: _Shapes) -> Json:
    return {
        "required": content.required,
        "content": {content.media_type: {"schema": shapes[content.shape]}},
    }


def _responses(route: Route, errors: Errors, shapes: _Shapes) -> Json:
    answers = {str(status): _reply(reply, shapes) for status, reply in route.responses.items()}
    refusals = {
        str(status): {
            "description": errors.words[status],
            "content": {errors.media_type: {"schema": shapes[errors.shape]}},
        }
        for status in route.errors
    }
    return answers | refusals


def _reply(reply: Reply, shapes: _Shapes) -> Json:
    described: Json = {"description": reply.description}
    if reply.shape is not None:
        described["content"] = {reply.media_type: {"schema": shapes[reply.shape]}} | {
            media_type: {"schema": {"type": "string"}} for media_type in reply.streams_as
        }
    if reply.headers:
        described["headers"] = {
            header.name: {"schema": shapes[header.shape]}
            | ({"description": header.description} if header.description else {})
            for header in reply.headers
        }
    return described


def _tidy_parameters(operation: Json) -> None:
    """FastAPI writes a parameter that may be absent as one that may be null, which no query can say."""
    for parameter in operation.get("parameters", ()):
        schema = _tidy(parameter["schema"])
        given = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
        if len(given) == 1:
            del schema["anyOf"]
            schema = given[0] | schema
        # Said beside the schema already.
        schema.pop("description", None)
        parameter["schema"] = schema


def _tidy(schema: Any) -> Any:
    """Without what tells nothing, and with patterns that are not Python's alone."""
    if isinstance(schema, list):
        return [_tidy(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {
        name: _tidy(value)
        for name, value in schema.items()
        if not (name == "title" and isinstance(value, str))
        and not (name == "default" and value is None)
        and not (name == "required" and value == [])
    }
    if isinstance(tidied.get("pattern"), str):
        tidied["pattern"] = tidied["pattern"].replace(r"\Z", "$")
    return tidied
