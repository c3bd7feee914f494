"""One page being made for one visitor: templates, messages, forms and what is asked of them."""

import base64
import binascii
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

import jinja2
import msgspec
from fastapi import Depends
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from app import __version__
from app.api.direct import read_body
from app.api.pages import SESSION_COOKIE, cookie_of
from app.api.services import Services, account_of, services_of
from app.dashboard import words
from app.dashboard.assets import asset_url
from app.dashboard.attention import ATTENTION
from app.dashboard.navigation import entries
from app.errors import Forbidden, ForemanError, Unavailable, Unparsable
from app.identity.account import Account
from app.identity.scopes import Scope

FLASH_COOKIE = "foreman_flash"
THEME_COOKIE = "foreman_theme"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
THEMES = frozenset({"light", "dark"})
MAX_FORM_FIELDS = 5000
MAX_FLASH_TEXT = 700


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("app.dashboard"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Templates do not change under a running server.
        auto_reload=False,
    )
    environment.filters.update(
        duration=words.duration,
        exact=words.exact,
        number=words.number,
        short_id=words.short_id,
        size=words.size,
        counted=words.counted,
        listed=words.listed,
    )
    environment.globals.update(
        asset=asset_url,
        glyphs=words.GLYPHS,
        version=__version__,
        Scope=Scope,
    )
    environment.filters["time"] = _time
    return environment


def _time(moment: datetime | None, *, empty: str = "–") -> Markup:
    """Relative, with the exact moment on hover; the script keeps it going."""
    if moment is None:
        return Markup.escape(empty)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.astimezone(UTC).isoformat(), words.exact(moment), words.ago(moment, datetime.now(UTC))
    )


TEMPLATES = _environment()


class Undo(msgspec.Struct):
    """A form that takes back what was done."""

    action: str
    label: str = "Undo"
    fields: dict[str, str] = {}


class Said(msgspec.Struct):
    """What a page says of what was just done."""

    text: str
    detail: str = ""
    failed: bool = False
    undo: Undo | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Said).decode


class Form:
    """What was sent by a form of ours."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str, default: str = "") -> str:
        """The last of that name, without blanks around it."""
        found = self._fields.get(name)
        return found[-1].strip() if found else default

    def raw(self, name: str) -> str:
        """As it was typed, line ends as they are elsewhere."""
        found = self._fields.get(name)
        return found[-1].replace("\r\n", "\n") if found else ""

    def all(self, name: str) -> list[str]:
        return [each for each in self._fields.get(name, []) if each]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All of them, as an address would have them."""
        return [(name, value) for name, values in self._fields.items() for value in values]

    def back(self, otherwise: str) -> str:
        """Where the form stood, as it says itself; another page where that is none of ours."""
        return own_or(self.text("back"), otherwise)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @property
    def values(self) -> dict[str, str]:
        """Everything as it was typed, to be shown again."""
        return {name: self.raw(name) for name in self._fields}


class Page:
    """One page for one visitor."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.services: Services = services_of(request)
        self.account: Account = account_of(request)
        self._session = cookie_of(request.scope["headers"], SESSION_COOKIE)
        self._new_session: str | None = None

    @property
    def tenant(self) -> str:
        return self.account.tenant

    def may(self, scope: Scope) -> bool:
        return scope in self.account.scopes

    @property
    def is_partial(self) -> bool:
        """Whether the page that is open asks for what has changed of it."""
        return "hx-request" in self.request.headers

    @property
    def address(self) -> str:
        """Its own, with the query."""
        path, query = str(self.request.scope["path"]), self.request.url.query
        return f"{path}?{query}" if query else path

    @property
    def origin(self) -> str:
        """Where this server is, as the browser calls it: for what is to be typed elsewhere."""
        return f"{self.request.url.scheme}://{self.request.url.netloc}"

    # -- showing ---------------------------------------------------------------------------------------

    async def show(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """The page as a whole, or without its frame for whoever has it open already."""
        said = None if self.is_partial else _flash(cookie_of(self.request.scope["headers"], FLASH_COOKIE))
        matters = None
        if self.may(Scope.ADMIN_READ):
            # A page that has all it shows, such as a form with what was typed, needs no database.
            with contextlib.suppress(Unavailable):
                matters = await ATTENTION.matters(self.services, self.tenant)
        context = self._context() | {"said": said, "matters": matters} | context
        body = TEMPLATES.get_template(template).render(context)
        response = html(body, status)
        self._keep_session(response)
        if said is not None:
            response.delete_cookie(FLASH_COOKIE, path="/ui")
        return response

    def _context(self) -> dict[str, Any]:
        return {
            "layout": "partial.html" if self.is_partial else "base.html",
            "page": self,
            "path": self.request.scope["path"],
            "address": self.address,
            "account": self.account,
            "may": self.may,
            "navigation": entries(self.account),
            "now": datetime.now(UTC),
            "theme": self.theme,
            "csrf": self.csrf,
            "csrf_field": self._csrf_field,
            "open_mode": self.services.authenticator is None,
            "nudges": "/ui/nudges",
            "section": self.request.scope["path"].removeprefix("/ui").strip("/").partition("/")[0],
        }

    def _csrf_field(self) -> Markup:
        return Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, self.csrf)

    @property
    def theme(self) -> str:
        found = cookie_of(self.request.scope["headers"], THEME_COOKIE)
        return found if found in THEMES else "auto"

    # -- doing -----------------------------------------------------------------------------------------

    @property
    def csrf(self) -> str:
        """Only a page that was shown to this very browser knows it."""
        if self._session is None:
            # Without authentication nobody signs in; the browser is told apart all the same.
            self._session = self._new_session = secrets.token_urlsafe(32)
        return csrf_token(self._session)

    async def form(self) -> Form:
        """What was sent, if one of our own pages had it sent. Raises Forbidden."""
        body = await read_body(self.request)
        try:
            fields = parse_qs(
                body.decode(),
                keep_blank_values=True,
                strict_parsing=bool(body),
                max_num_fields=MAX_FORM_FIELDS,
            )
        except ValueError as problem:
            raise Unparsable("This is not what a form of the dashboard sends.") from problem
        token = self.request.headers.get(CSRF_HEADER) or "".join(fields.get(CSRF_FIELD, []))
        if self._session is None or not hmac.compare_digest(
            token.encode(), csrf_token(self._session).encode()
        ):
            raise Forbidden(
                "This form was not sent by a page of the dashboard that is open now. Reload it and try again."
            )
        if any("\0" in value for values in fields.values() for value in values):
            raise Unparsable("A field has a NUL character.")
        fields.pop(CSRF_FIELD, None)
        return Form(fields)

    def go(self, to: str, said: Said | None = None) -> Response:
        """To another page, which says what was done."""
        response = Response(status_code=303, headers={"location": to, "cache-control": "no-store"})
        if said is not None:
            said.text, said.detail = said.text[:MAX_FLASH_TEXT], said.detail[:MAX_FLASH_TEXT]
            response.set_cookie(
                FLASH_COOKIE,
                base64.urlsafe_b64encode(_encode(said)).decode(),
                max_age=60,
                path="/ui",
                httponly=True,
                samesite="lax",
            )
        return response

    def failed(self, to: str, problem: ForemanError) -> Response:
        """Back to a page, which says why it could not be done."""
        return self.go(to, Said(problem.title, problem.detail, failed=True))

    def _keep_session(self, response: Response) -> None:
        if self._new_session is not None:
            set_session(response, self.request, self._new_session, None)


def csrf_token(session: str) -> str:
    return hmac.digest(session.encode("latin-1", "replace"), b"foreman csrf", hashlib.sha256).hex()


def set_session(response: Response, request: Request, token: str, seconds: float | None) -> None:
    """For as long as the browser is open where no time is given."""
    behind_tls = "https" in (request.scope.get("scheme"), request.headers.get("x-forwarded-proto", ""))
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=None if seconds is None else int(seconds),
        path="/",
        secure=behind_tls,
        httponly=True,
        samesite="lax",
    )


def html(body: str, status: int = 200) -> Response:
    headers = {"cache-control": "no-store", "vary": "cookie, hx-request"}
    return Response(body, status, headers, media_type="text/html")


def _flash(cookie: str | None) -> Said | None:
    if cookie is None:
        return None
    try:
        said = _decode(base64.urlsafe_b64decode(cookie))
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return None
    # Only what this dashboard can do may be undone by its buttons.
    if said.undo is not None and not is_own(said.undo.action):
        said.undo = None
    return said


def is_own(address: str) -> bool:
    """Whether it leads to a page of ours: nobody is sent elsewhere."""
    return (
        (address in {"/ui", "/docs"} or address.startswith(("/ui/", "/ui?", "/docs?")))
        and address.isprintable()
        and "\\" not in address
    )


def own_or(address: str, otherwise: str) -> str:
    return address if is_own(address) else otherwise


def sign_in_address(back: str) -> str:
    return f"/ui/sign-in?next={quote(back, safe='')}"


async def _page(request: Request) -> Page:
    return Page(request)


Visit = Annotated[Page, Depends(_page)]
