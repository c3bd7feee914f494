"""/ui/submit: a form that submits a job, by the same way as POST /jobs.

The form becomes the very body that a program would send, and is shown as such: what the API refuses, the form
refuses in the same words, at the field that they are about.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import orjson
from fastapi import Query
from starlette.responses import Response

from app.api import jobs as api
from app.api.job_parameters import existing_id, key_from
from app.api.routes import Reply, Routes
from app.dashboard.page import Form, Page, Said, Visit
from app.dashboard.words import short_id
from app.errors import ForemanError, InvalidRequest, NotFound
from app.identity.scopes import Scope
from app.jobs import verbatim
from app.jobs.ids import is_id
from app.jobs.lanes import LLM_KINDS
from app.jobs.submission import EXTENSION_FIELDS, invalid, shown
from app.outbound.headers import METHODS
from app.store.job import Job
from app.targets.inventory import ECHO_INVENTORY

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}
PATH = "/ui/submit"
# Which part of the form counts: three kinds have fields of their own, the last takes any.
FORMS = ("chat", "http", "noop", "any")
# What a form of the page calls what a job calls otherwise; the rest has the same names.
FIELDS = {
    "messages": "message",
    "payload.url": "url",
    "payload.method": "method",
    "payload.headers": "headers",
    "payload.body": "body",
    "payload.timeout_seconds": "timeout_seconds",
}
NUMBERS = ("delay_seconds", "deadline_seconds", "max_duration_seconds")
WHOLE_NUMBERS = ("priority", "max_attempts")
TEXTS = ("queue", "run_at", "deadline", "target", "state_webhook_url", "on_dependency_failure")
_SEPARATORS = re.compile(r"[\s,]+")
_NUMBER = re.compile(r"-?\d{1,12}(\.\d{1,9})?")

# Not so large that a page could not show it for changing.
MAX_COPIED = 512 * 1024

Typed = dict[str, str]


class Wrong(Exception):
    """What is wrong with what was typed, by field."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = dict(errors)


@dataclass(slots=True)
class Shown:
    """The form as it is to be shown."""

    typed: Typed
    errors: dict[str, str] = field(default_factory=dict)
    problem: ForemanError | None = None
    # The job that it is a copy of.
    copied: str = ""
    curl: str = ""

    def value(self, name: str) -> str:
        return self.typed.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    @property
    def has_more(self) -> bool:
        """Whether something is set of what is rarely needed."""
        return any(self.typed.get(name) or name in self.errors for name in RARE)


RARE = (
    *("run_at", "delay_seconds", "deadline", "deadline_seconds", "max_attempts", "max_duration_seconds"),
    *(
        "state_webhook_url",
        "webhook_events",
        "depends_on",
        "on_dependency_failure",
        "idempotency_key",
        "target",
    ),
)


@routes.get(PATH, Scope.JOBS_WRITE, "Submit a job", PAGE, documented=False)
async def submit_page(
    visit: Visit, copied: Annotated[str, Query(alias="from", max_length=64)] = ""
) -> Response:
    models = await _models(visit)
    typed = {"form": "chat", "model": models[0] if models else "", "queue": "default"}
    if not copied:
        return await _show(visit, Shown(typed), models)
    visit.account.require(Scope.JOBS_READ)
    try:
        job = await api.existing_job(visit.services, existing_id(copied.upper()), visit.tenant)
    except NotFound as problem:
        return await _show(visit, Shown(typed, problem=problem), models, status=404)
    return await _show(visit, Shown(typed | _copy(job), copied=job.id), models)


async def _show(visit: Page, form: Shown, models: list[str], status: int = 200) -> Response:
    return await visit.show(
        "submit.html",
        status=status,
        form=form,
        forms=FORMS,
        models=models,
        methods=[(each, each) for each in sorted(METHODS)],
        section="jobs",
    )


@routes.post(PATH, Scope.JOBS_WRITE, "Submit a job", MOVED, documented=False)
async def submit(visit: Visit) -> Response:
    form = await visit.form()
    typed = form.values
    copied = form.text("copied")
    shown_again = Shown(typed, copied=copied if is_id(copied) else "")
    try:
        body, key = body_of(form), form.text("idempotency_key")
        shown_again.curl = curl_of(visit, body, key)
        if "show" in form:
            return await _show(visit, shown_again, await _models(visit))
        receipt = await api.submit_body(visit.request, body, key_from(key) if key else None)
    except Wrong as wrong:
        shown_again.errors = wrong.errors
        return await _show(visit, shown_again, await _models(visit), status=422)
    except ForemanError as problem:
        shown_again.errors, shown_again.problem = _by_field(problem, typed), problem
        return await _show(visit, shown_again, await _models(visit), status=problem.status)
    job_id = receipt.job_ids[0]
    return visit.go(f"/ui/jobs/{job_id}", Said(_said(job_id, receipt)))


def _said(job_id: str, receipt: Any) -> str:
    if receipt.replayed:
        return "This idempotency key was used for this very job before: here it is."
    outcome = receipt.answers[0].outcome if receipt.answers is not None else "accepted"
    if outcome == "coalesced":
        return "A job with the same concurrency key is there already: this is the one."
    return f"Submitted as {short_id(job_id)}."


def _by_field(problem: ForemanError, typed: Typed) -> dict[str, str]:
    """The errors of the API, at the fields of the form; what is about none of them is said above it."""
    found = {}
    for each in problem.extra.get("errors", []):
        name = FIELDS.get(each["field"], each["field"])
        if typed.get("form") == "any" and name not in EXTENSION_FIELDS:
            name = "payload"
        found[name] = each["message"]
    return found


async def _models(visit: Page) -> list[str]:
    """What the targets have, as far as it is known."""
    registry = visit.services.targets
    inventories = [each.inventory for each in registry.targets if each.inventory is not None]
    if registry.is_empty:
        inventories = [ECHO_INVENTORY]
    return sorted({name for inventory in inventories for name in inventory.names})


# -- from the form to the body of a request ------------------------------------------------------------------


def body_of(form: Form) -> bytes:
    """What POST /jobs would be sent. Raises Wrong where a field cannot even be put into it."""
    errors: dict[str, str] = {}
    work = _work(form, errors)
    fields = _settings(form, errors)
    if errors:
        raise Wrong(errors)
    own = ",".join(f"{_json(name)}:{_json(value)}" for name, value in fields.items())
    return ("{" + ",".join(part for part in (own, work) if part) + "}").encode()


def _work(form: Form, errors: dict[str, str]) -> str:
    """Kind and work, as members of an object; what was typed as JSON stays as it was typed."""
    match form.text("form"):
        case "chat":
            more = _members(form, "more", errors)
            taken = sorted({"model", "messages", "kind", *EXTENSION_FIELDS} & more.keys())
            if taken:
                errors["more"] = f"{', '.join(taken)}: there is a field for that"
            if not form.text("model"):
                errors["model"] = "is needed"
            if not form.text("message"):
                errors["message"] = "is needed"
            messages = [{"role": "user", "content": form.raw("message")}]
            if form.raw("system").strip():
                messages.insert(0, {"role": "system", "content": form.raw("system")})
            work = {"model": form.text("model"), "messages": messages}
            written = [f"{_json(name)}:{_json(value)}" for name, value in work.items()]
            return ",".join([*written, *_spliced(more)])
        case "http":
            return f'"kind":"http","payload":{_json(_call(form, errors))}'
        case "noop":
            return '"kind":"noop"'
        case "any":
            return _any(form, errors)
        case _:
            errors["form"] = "Say what kind of job it is."
            return ""


def _call(form: Form, errors: dict[str, str]) -> dict[str, Any]:
    call: dict[str, Any] = {"method": form.text("method") or "GET", "url": form.text("url")}
    if not call["url"]:
        errors["url"] = "is needed"
    headers = {}
    for line in filter(None, map(str.strip, form.raw("headers").split("\n"))):
        name, separator, value = line.partition(":")
        if not separator:
            errors["headers"] = f"“{shown(line)}” is not a header: write Name: value"
        headers[name.strip()] = value.strip()
    if headers:
        call["headers"] = headers
    if form.raw("body"):
        call["body"] = form.raw("body")
    if form.text("timeout_seconds"):
        call["timeout_seconds"] = _number(form, "timeout_seconds", errors)
    return call


def _any(form: Form, errors: dict[str, str]) -> str:
    kind = form.text("kind")
    if not kind:
        errors["kind"] = "is needed"
    payload = _members(form, "payload", errors)
    if kind not in LLM_KINDS:
        return f'"kind":{_json(kind)},"payload":{form.raw("payload").strip() or "{}"}'
    taken = sorted(EXTENSION_FIELDS & payload.keys())
    if taken:
        errors["payload"] = f"{', '.join(taken)}: there is a field for that"
    return ",".join([f'"kind":{_json(kind)}', *_spliced(payload)])


def _members(form: Form, name: str, errors: dict[str, str]) -> verbatim.Members:
    text = form.raw(name).strip()
    if not text:
        return {}
    try:
        return verbatim.members(text.encode())
    except InvalidRequest as problem:
        errors[name] = problem.detail.replace("The body", "This").rstrip(".")
    except UnicodeEncodeError:
        errors[name] = "has a lone surrogate, which JSON cannot carry"
    return {}


def _spliced(members: verbatim.Members) -> list[str]:
    return [f"{_json(name)}:{bytes(raw).decode()}" for name, raw in members.items()]


def _settings(form: Form, errors: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in TEXTS:
        if form.text(name):
            found[name] = form.text(name)
    for name in (*NUMBERS, *WHOLE_NUMBERS):
        if form.text(name):
            found[name] = _number(form, name, errors)
    for name in ("depends_on", "webhook_events"):
        if form.text(name):
            found[name] = [each for each in _SEPARATORS.split(form.text(name)) if each]
    metadata = _metadata(form, errors)
    if metadata:
        found["metadata"] = metadata
    return found


def _number(form: Form, name: str, errors: dict[str, str]) -> float | int:
    given = form.text(name)
    if not _NUMBER.fullmatch(given):
        errors[name] = "must be a number"
        return 0
    return float(given) if "." in given else int(given)


def _metadata(form: Form, errors: dict[str, str]) -> dict[str, str]:
    found = {}
    for line in filter(None, map(str.strip, form.raw("metadata").split("\n"))):
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            errors["metadata"] = f"“{shown(line)}” is not of the form key=value"
        found[name.strip()] = value.strip()
    return found


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as problem:
        raise InvalidRequest("A field has a lone surrogate, which JSON cannot carry.") from problem


def curl_of(visit: Page, body: bytes, key: str) -> str:
    """The same from a terminal."""
    parts = ["curl", shlex.quote(f"{visit.origin}/jobs")]
    if visit.services.authenticator is not None:
        parts.append('-H "Authorization: Bearer $FOREMAN_API_KEY"')
    parts.append("-H 'Content-Type: application/json'")
    if key:
        parts.append("-H " + shlex.quote(f"Idempotency-Key: {key}"))
    return " ".join([*parts, "--data-raw", shlex.quote(body.decode())])


# -- from a job to the form ----------------------------------------------------------------------------------


def _copy(job: Job) -> Typed:
    """The job as it could be submitted again: its work as it came in, and what was said of how to run it."""
    if len(job.payload) > MAX_COPIED:
        raise invalid("from", "has a payload that is too large to be changed on a page")
    return {
        "form": "noop" if job.kind == "noop" else "any",
        "kind": job.kind,
        # Line breaks and blanks between its parts alone: numbers and escapes stay as they were written.
        "payload": msgspec.json.format(job.payload, indent=2),
        "queue": job.queue,
        "priority": str(job.priority) if job.priority else "",
        "max_attempts": str(job.max_attempts),
        "metadata": "\n".join(f"{name}={value}" for name, value in _entries(job.metadata)),
        "target": job.target or "",
    }


def _entries(metadata: str | None) -> list[tuple[str, str]]:
    return list(msgspec.json.decode(metadata, type=dict[str, str]).items()) if metadata else []
