"""What a person is shown instead of a page: why not, what it means, and what to do about it."""

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from app import __version__
from app.api import surfaces
from app.api.pages import cookie_of
from app.dashboard.page import TEMPLATES, THEME_COOKIE, THEMES, html, sign_in_address
from app.errors import ForemanError, Unauthorized, Unavailable

# A page may load nothing but what is here, run no script but ours, send forms to nobody else and be put in no
# frame. With `no-referrer` browsers would not say which page a form was sent by.
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
]

ADVICE = {
    401: "Sign in again.",
    403: "Sign in with a key that has this scope, or ask whoever manages the keys.",
    404: "It may have been removed when its retention was over, or belong to another tenant.",
    405: "This address does not take that.",
    429: "Wait a moment, and reload the page.",
    503: "This page tries again by itself.",
}


class DashboardPages:
    """The paths of the dashboard, for the edge."""

    headers = HEADERS

    def owns(self, path: str) -> bool:
        return path.startswith(("/ui/", "/docs/")) or path in {"/ui", "/docs"}

    def refuse(self, scope: Scope, error: ForemanError) -> Response:
        headers = Headers(scope=scope)
        if isinstance(error, Unauthorized) and "authorization" not in headers:
            return _to_sign_in(scope, headers)
        theme = cookie_of(scope["headers"], THEME_COOKIE)
        body = TEMPLATES.get_template("refusal.html").render(
            problem=error,
            advice=ADVICE.get(error.status, ""),
            tries_again=isinstance(error, Unavailable),
            theme=theme if theme in THEMES else "auto",
            request_id=scope["state"]["request_id"],
            version=__version__,
        )
        response = html(body, error.status)
        response.headers.update(surfaces.advice(error))
        return response


def _to_sign_in(scope: Scope, headers: Headers) -> Response:
    """And back to the page afterwards; from an action, to the page that it was on."""
    if "hx-request" in headers:
        # The script of the open page goes there, and knows where it was.
        return html("", 401)
    back = scope["path"] if scope["method"] in {"GET", "HEAD"} else "/ui"
    query = scope["query_string"].decode("latin-1")
    if query and scope["method"] in {"GET", "HEAD"}:
        back += f"?{query}"
    return Response(status_code=303, headers={"location": sign_in_address(back), "cache-control": "no-store"})
