"""Where the events of a response or a batch go: their bodies are OpenAI's, so Foreman's own are headers.

OpenAI's clients cannot name a receiver in a call; what they leave open the operator may say by settings.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Header
from starlette.requests import Request

from app.config import Settings, listed
from app.errors import InvalidRequest
from app.jobs.openai_events import FOREMAN_SHAPE, OPENAI_SHAPE
from app.jobs.submission import NewJob, checked, invalid

SHAPES = (FOREMAN_SHAPE, OPENAI_SHAPE)
SHAPE = "X-Foreman-Webhook-Shape"
# Under which name each field of `POST /jobs` comes here.
HEADERS = {
    "state_webhook_url": "X-Foreman-Webhook-Url",
    "webhook_events": "X-Foreman-Webhook-Events",
    "webhook_secret": "X-Foreman-Webhook-Secret",
    "webhook_shape": SHAPE,
}


def webhook_parameters(
    x_foreman_webhook_url: Annotated[
        str | None,
        Header(
            description="Where the events of this job go.",
            alias=HEADERS["state_webhook_url"],
            json_schema_extra={"format": "uri"},
        ),
    ] = None,
    x_foreman_webhook_events: Annotated[
        str | None,
        Header(
            description="Which events, separated by commas; in the shape `openai` only ends.",
            alias=HEADERS["webhook_events"],
        ),
    ] = None,
    x_foreman_webhook_secret: Annotated[
        str | None,
        Header(description="`whsec_…` to sign them with.", alias=HEADERS["webhook_secret"]),
    ] = None,
    x_foreman_webhook_shape: Annotated[
        str | None,
        Header(description="What they look like.", alias=SHAPE, json_schema_extra={"enum": list(SHAPES)}),
    ] = None,
) -> None:
    """What `webhook_of` reads, for the document. Described here, and checked there."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Who is told of a job, of what and how; without a URL, nobody."""

    url: str | None = None
    events: list[str] | None = None
    secret: str | None = field(default=None, repr=False)
    # None is Foreman's own.
    shape: str | None = None

    def put_on(self, job: NewJob) -> None:
        job.webhook_url, job.webhook_events = self.url, self.events
        job.webhook_secret, job.webhook_shape = self.secret, self.shape


def webhook_of(request: Request, settings: Settings, *, in_background: bool = True) -> Webhook:
    """What the headers say, or else the settings; those are not for a caller who waits for the answer itself.

    Checked as the fields of `POST /jobs` are. Raises InvalidRequest that names the header.
    """
    given = _given(request)
    shape = _shape(request, settings)
    if in_background and settings.openai_webhook_url is not None:
        given.setdefault("state_webhook_url", settings.openai_webhook_url)
    elif SHAPE in request.headers and "state_webhook_url" not in given:
        raise invalid(SHAPE, f"means nothing without {HEADERS['state_webhook_url']}")
    if not given:
        return Webhook()
    try:
        fields = checked(given)
    except InvalidRequest as problem:
        raise by_header(problem) from problem
    return Webhook(fields.state_webhook_url, fields.webhook_events, fields.webhook_secret, shape)


def _given(request: Request) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name in ("state_webhook_url", "webhook_secret"):
        value = request.headers.get(HEADERS[name])
        if value is not None:
            given[name] = value.strip()
    events = request.headers.getlist(HEADERS["webhook_events"])
    if events:
        given["webhook_events"] = listed(",".join(events))
        if not given["webhook_events"]:
            raise invalid(HEADERS["webhook_events"], "names no event")
    return given


def _shape(request: Request, settings: Settings) -> str | None:
    wanted = request.headers.get(SHAPE, settings.webhook_shape).strip().lower()
    if wanted not in SHAPES:
        raise invalid(SHAPE, f"must be {' or '.join(SHAPES)}")
    return None if wanted == FOREMAN_SHAPE else wanted


def by_header(problem: InvalidRequest) -> InvalidRequest:
    """The same under the names that these fields have here. Whatever else is wrong stays as it is."""
    errors = problem.extra.get("errors") or []
    if not any(each.get("field") in HEADERS for each in errors):
        return problem
    named = [
        {"field": HEADERS.get(each["field"], each["field"]), "message": _renamed(each["message"])}
        for each in errors
    ]
    words = "; ".join(f"{each['field']}: {each['message']}" for each in named)
    return InvalidRequest(f"{words}.", errors=named)


def _renamed(message: str) -> str:
    for name, header in HEADERS.items():
        message = message.replace(name, header)
    return message
