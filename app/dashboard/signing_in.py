"""Signing in with an API key, and out again."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from app.api.pages import SESSION_COOKIE, session_token
from app.api.routes import Access, Reply, Routes
from app.dashboard.navigation import first_page
from app.dashboard.page import Page, Said, Visit, own_or, set_session, sign_in_address
from app.errors import Unauthorized

routes = Routes("dashboard")
PAGE = Reply("The page", str, media_type="text/html")
MOVED = {303: Reply("Done; the page to go on with")}

Next = Annotated[str, Query(max_length=2000)]


@routes.get("/ui/sign-in", Access.OPEN, "Sign in", PAGE, documented=False)
async def sign_in_page(visit: Visit, next: Next = "") -> Response:  # as it stands in the address
    if visit.services.authenticator is None:
        return visit.go("/ui")
    return await _form(visit, next)


async def _form(visit: Page, back: str, *, status: int = 200, problem: str = "") -> Response:
    return await visit.show(
        "sign_in.html", status=status, back=own_or(back, ""), problem=problem, layout="bare.html"
    )


@routes.post("/ui/sign-in", Access.OPEN, "Sign in", MOVED, documented=False)
async def sign_in(visit: Visit) -> Response:
    form = await visit.form()
    authenticator, back = visit.services.authenticator, own_or(form.text("next"), "")
    if authenticator is None:
        return visit.go("/ui")
    try:
        account = await authenticator.identify(b"Bearer " + form.text("key").encode())
    except Unauthorized as refused:
        return await _form(visit, back, status=401, problem=refused.detail)
    seconds = visit.services.settings.session_hours * 3600
    response = visit.go(back or first_page(account))
    # A new one, whatever the browser had before: nobody else can have put it there.
    set_session(response, visit.request, await authenticator.open_session(account, seconds), seconds)
    return response


@routes.post("/ui/sign-out", Access.ANY_KEY, "Sign out", MOVED, documented=False)
async def sign_out(visit: Visit) -> Response:
    await visit.form()
    token = session_token(visit.request.scope)
    if visit.services.authenticator is not None and token is not None:
        await visit.services.authenticator.end_session(token)
    response = visit.go(sign_in_address("/ui"), Said("You are signed out."))
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response
