"""/docs: the API's own reference, made of the OpenAPI document. Offline, and in the look of the rest."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from app.api.routes import Access, Reply, Routes
from app.dashboard.page import TEMPLATES, Visit
from app.dialects import DIALECTS

routes = Routes("dashboard")

SCHEMA = "#/components/schemas/"
METHODS = ("get", "post", "put", "patch", "delete")
# What each group is for, in the order in which a newcomer reads.
GROUPS = {
    "jobs": "Submit, read, list, cancel, retry, delete.",
    "events": "What happened to a job, as a page or a stream; and the tokens of a running one.",
    "artifacts": "What a job leaves behind.",
    "webhooks": "What was told to whom, and telling it again.",
    "queues": "Settings, counts, limits, keys; pause and resume.",
    "workers": "Claim work over HTTP, with a lease, and settle it.",
    "operators": "Dead letters, bulk operations, schedules, targets, keys, usage, health, metrics.",
    **dict.fromkeys(DIALECTS, "What its own clients call, answered by whatever target has the model."),
}


class Field(msgspec.Struct):
    name: str
    type: Markup
    required: bool
    description: str
    where: str = ""


class Body(msgspec.Struct):
    media_type: str
    type: Markup
    fields: list[Field]
    example: str


class Answered(msgspec.Struct):
    status: str
    description: str
    type: Markup


class Operation(msgspec.Struct):
    anchor: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[Field]
    body: Body | None
    answers: list[Answered]
    curl: str


class Group(msgspec.Struct):
    name: str
    purpose: str
    operations: list[Operation]


class Shape(msgspec.Struct):
    name: str
    description: str
    fields: list[Field]
    type: Markup


@routes.get(
    "/docs",
    Access.ANY_KEY,
    "The API's reference",
    Reply("The page", str, media_type="text/html"),
    documented=False,
)
async def reference_page(visit: Visit) -> Response:
    reference = _rendered(visit.request.app.openapi)
    return await visit.show("reference.html", reference=reference, nudges="")


@cache
def _rendered(describe: Any) -> Markup:
    """All but the frame, once for each process: the document does not change."""
    document = describe()
    body = TEMPLATES.get_template("_reference.html").render(
        groups=groups_of(document), shapes=shapes_of(document), about=document["info"]
    )
    return Markup(body)  # noqa: S704  # a template has escaped it


def groups_of(document: Mapping[str, Any]) -> list[Group]:
    found: dict[str, list[Operation]] = {name: [] for name in GROUPS}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                operation = item[method]
                found.setdefault(operation["tags"][0], []).append(
                    _operation(document, method, path, operation)
                )
    return [Group(name, GROUPS.get(name, ""), each) for name, each in found.items() if each]


def shapes_of(document: Mapping[str, Any]) -> list[Shape]:
    shapes = document["components"]["schemas"]
    return [
        Shape(name, shapes[name].get("description", ""), _fields(shapes[name]), _type(shapes[name]))
        for name in sorted(shapes)
    ]


def _operation(document: Mapping[str, Any], method: str, path: str, said: Mapping[str, Any]) -> Operation:
    parameters = [
        Field(
            each["name"],
            _type(each.get("schema", {})),
            each.get("required", False),
            each.get("description", ""),
            each["in"],
        )
        for each in said.get("parameters", [])
    ]
    body = _body(document, said.get("requestBody"))
    answers = [
        Answered(status, each.get("description", ""), _content(each.get("content", {})))
        for status, each in sorted(said.get("responses", {}).items())
    ]
    return Operation(
        anchor=f"{method}{path}".replace("/", "-").replace("{", "").replace("}", "").replace(":", "-"),
        method=method.upper(),
        path=path,
        summary=said.get("summary", ""),
        description=said.get("description", "").strip(),
        parameters=parameters,
        body=body,
        answers=answers,
        curl=_curl(method, path, body),
    )


def _body(document: Mapping[str, Any], said: Mapping[str, Any] | None) -> Body | None:
    if said is None:
        return None
    media_type, content = next(iter(said["content"].items()))
    schema = content.get("schema", {})
    fields = _fields(_resolved(document, schema))
    return Body(media_type, _type(schema), fields, _example(schema, media_type))


def _example(schema: Mapping[str, Any], media_type: str) -> str:
    examples = schema.get("examples") or ([schema["example"]] if "example" in schema else [])
    if examples:
        return json.dumps(examples[0], indent=2, ensure_ascii=False)
    return "{}" if media_type.endswith("json") else ""


def _curl(method: str, path: str, body: Body | None) -> str:
    parts = ["curl -s"]
    if method not in {"get", "post"} or (method == "post" and body is None):
        parts.append(f"-X {method.upper()}")
    parts.append(f"localhost:8080{path}")
    if body is not None:
        given = json.dumps(json.loads(body.example), ensure_ascii=False) if body.example else "@file"
        parts.append("--data-binary @file" if given == "@file" else f"-d '{given}'")
    return " ".join(parts)


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Behind a reference, also where a description or an example stands beside it."""
    for each in (schema, *schema.get("allOf", [])):
        if "$ref" in each:
            found: Mapping[str, Any] = document["components"]["schemas"][each["$ref"].removeprefix(SCHEMA)]
            return found
    return schema


def _fields(schema: Mapping[str, Any]) -> list[Field]:
    required = schema.get("required", [])
    return [
        Field(name, _type(each), name in required, each.get("description", ""))
        for name, each in schema.get("properties", {}).items()
    ]


def _content(content: Mapping[str, Any]) -> Markup:
    for media_type, said in content.items():
        if media_type.endswith("json"):
            return _type(said.get("schema", {}))
    return Markup.escape(next(iter(content), ""))


def _type(schema: Mapping[str, Any]) -> Markup:
    """In words, with a link to each shape that has a name."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMA)
        return Markup('<a href="#shape-{}">{}</a>').format(name, name.rpartition(".")[2])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return Markup(" or ").join(dict.fromkeys(_type(each) for each in schema[several]))
    if "enum" in schema:
        return Markup(" or ").join(
            Markup("<code>{}</code>").format(json.dumps(each)) for each in schema["enum"]
        )
    kind = schema.get("type", "anything")
    if kind == "array":
        return Markup("list of ") + _type(schema.get("items", {}))
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return Markup("object of ") + _type(schema["additionalProperties"])
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return Markup.escape(" ".join(filter(None, (schema.get("format", "") or words, _bounds(schema)))))


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{low}…{high}"
    if high is not None:
        return f"≤ {high}"
    if low:
        return f"≥ {low}"
    return f"(at most {schema['maxLength']} characters)" if "maxLength" in schema else ""
