"""A person at the dashboard, without a browser: keeps cookies, takes the token from the page, sends forms."""

import html
import re
from typing import Any
from urllib.parse import urlencode

import httpx

FORM = {"content-type": "application/x-www-form-urlencoded"}
TOKEN = re.compile(r'data-csrf="([0-9a-f]{64})"|name="csrf" value="([0-9a-f]{64})"')


class Visitor:
    """Redirects are not followed: where they lead is what a test looks at."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self.token = ""

    def get(self, path: str, status: int = 200, /, **headers: str) -> str:
        answer = self.http.get(path, headers=headers)
        assert answer.status_code == status, (answer.status_code, answer.text[:2000])
        found = TOKEN.search(answer.text)
        if found:
            self.token = found[1] or found[2]
        return answer.text

    def post(
        self, path: str, fields: dict[str, Any] | None = None, *, token: str | None = None, **headers: str
    ) -> httpx.Response:
        """As the form on the page last seen would send it."""
        given = urlencode({**(fields or {}), "csrf": self.token if token is None else token}, doseq=True)
        return self.http.post(path, content=given, headers=FORM | headers)

    def do(self, path: str, fields: dict[str, Any] | None = None) -> str:
        """Something that leads to a page; what that says of it."""
        answer = self.post(path, fields)
        assert answer.status_code == 303, (answer.status_code, answer.text[:2000])
        return text_of(self.get(answer.headers["location"]))

    def sign_in(self, key: str) -> None:
        self.get("/ui/sign-in")
        answer = self.post("/ui/sign-in", {"key": key})
        assert answer.status_code == 303, answer.text


def text_of(page: str) -> str:
    """What a person reads of a page."""
    body = re.sub(r"<(head|script|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())
