"""With keys: which pages may call the surfaces from another origin, and what they may read."""

import re

import httpx
import pytest

from app.api.cors import LOCAL_ORIGINS
from tests.conftest import Server

LOCAL = [
    "http://localhost",
    "http://localhost:3000",
    "https://localhost:8443",
    "http://127.0.0.1:5173",
    "http://0.0.0.0:8000",
    "http://[::1]:3000",
    "app://obsidian.md",
    "app://-",
    "file://",
    "tauri://localhost",
    "vscode-webview://1a2b3c",
    "vscode-file://vscode-app",
]
FOREIGN = [
    "null",
    "",
    "https://evil.example",
    "http://localhost.evil.example",
    "http://localhost:3000.evil.example",
    "http://evil.example:3000",
    "http://localhost@evil.example",
    "http://localhost:",
    "http://localhost/",
    "http://notlocalhost",
    "http://127.0.0.10",
    "http://127x0.0.1",
    "http://192.168.1.5",
    "chrome-extension://abcdef",
    "myapp://localhost",
    "app://a b",
    "HTTP://LOCALHOST",
]
# As the clients in a page send them.
SENT = "anthropic-version,authorization,content-type,x-api-key,x-foreman-priority,x-stainless-os"
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "stream": False}


def asked_first(server: Server, path: str, origin: str) -> httpx.Response:
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": SENT}
    return httpx.options(f"{server.url}{path}", headers={"origin": origin, **wanted})


def test_local_origins_are_those_of_ollama() -> None:
    assert [each for each in LOCAL if not re.fullmatch(LOCAL_ORIGINS, each)] == []
    assert [each for each in FOREIGN if re.fullmatch(LOCAL_ORIGINS, each)] == []


@pytest.mark.parametrize("origin", ["http://localhost:3000", "vscode-webview://1a2b3c", "app://obsidian.md"])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_page_of_the_caller_s_own_machine_calls_the_surfaces(
    guarded: Server, path: str, origin: str
) -> None:
    asked = asked_first(guarded, path, origin)
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, origin)
    assert "POST" in asked.headers["access-control-allow-methods"]
    allowed = re.split(r",\s*", asked.headers["access-control-allow-headers"].lower())
    assert set(SENT.split(",")) <= set(allowed)
    with guarded.client() as client:
        answer = client.post(path, json=CHAT, headers={"origin": origin})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
    assert "Origin" in answer.headers["vary"]
    exposed = answer.headers["access-control-expose-headers"]
    assert answer.headers["x-foreman-job-id"]
    assert "X-Foreman-Job-Id" in exposed
    # No cookie is ever taken from there.
    assert "access-control-allow-credentials" not in answer.headers


def test_it_still_needs_a_key_and_may_read_that_it_does(guarded: Server) -> None:
    answer = httpx.post(f"{guarded.url}/api/chat", json=CHAT, headers={"origin": "http://localhost:3000"})
    assert (answer.status_code, type(answer.json()["error"])) == (401, str)
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    # One that it was told in passing is none: a session is good for pages alone.
    cookie = {"origin": "http://localhost:3000", "cookie": "foreman_session=x"}
    assert httpx.post(f"{guarded.url}/api/chat", json=CHAT, headers=cookie).status_code == 401


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
def test_a_page_of_another_site_may_not_ask_and_reads_nothing(guarded: Server, origin: str) -> None:
    assert "access-control-allow-origin" not in asked_first(guarded, "/api/chat", origin).headers
    with guarded.client() as client:
        answer = client.post("/api/chat", json=CHAT, headers={"origin": origin})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/jobs", "/keys", "/ui/jobs", "/claims", "/", "/apix", "/v11"])
def test_nothing_but_the_surfaces_is_open_to_it(guarded: Server, path: str) -> None:
    origin = "http://localhost:3000"
    assert "access-control-allow-origin" not in asked_first(guarded, path, origin).headers
    with guarded.client() as client:
        assert "access-control-allow-origin" not in client.get(path, headers={"origin": origin}).headers
