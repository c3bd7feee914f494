"""A real Chromium, and servers to look at. Where there is no browser, these tests are skipped; in CI they fail."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.embedded import EmbeddedPostgres
from tests.conftest import Server
from tests.dashboard.conftest import QUICK
from tests.fakes.process import FakeOllama
from tests.serving import serving
from tests.sharing import FolderShare

# A deadline only ends what hangs.
MILLISECONDS = 60_000
expect.set_options(timeout=MILLISECONDS)
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # It would otherwise ask its maker's hosts for this and that.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def found_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched() -> Iterator[Browser]:
    found = found_browser()
    if found is None:
        said = "there is no Chromium for the browser tests: .ci/browser installs one"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def chromium(share: FolderShare) -> Browser:
    return share.get("chromium", launched)


@pytest.fixture
def ollama(share: FolderShare) -> FakeOllama:
    """Slow enough to be watched."""
    return share.get("ollama", lambda: FakeOllama(token_seconds=0.3))


@pytest.fixture
def opened(
    share: FolderShare,
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    ollama: FakeOllama,
) -> Server:
    asked = QUICK | {"FOREMAN_OLLAMA_URL": ollama.url}
    return share.get("opened", lambda: serving(postgres, tmp_path_factory.mktemp("opened"), **asked))


@pytest.fixture
def guarded(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    keyed = QUICK | {"FOREMAN_AUTH": "on"}
    return share.get("guarded", lambda: serving(postgres, tmp_path_factory.mktemp("guarded"), **keyed))


class Watched:
    """A page of which everything is seen that no page should do: errors, and requests to anybody else."""

    def __init__(self, browser: Browser, server: Server, **options: object) -> None:
        self.context = browser.new_context(base_url=server.url, **options)  # type: ignore[arg-type]
        self.context.set_default_timeout(MILLISECONDS)
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._said)
        self.context.on(
            "request",
            lambda request: (
                None if request.url.startswith((server.url, "data:")) else self.elsewhere.append(request.url)
            ),
        )

    def _said(self, message: object) -> None:
        if getattr(message, "type", "") in {"error", "warning"}:
            self.problems.append(str(getattr(message, "text", "")))

    def close(self) -> None:
        self.context.close()
        assert self.elsewhere == []
        assert self.problems == []


@pytest.fixture
def watched(chromium: Browser, opened: Server) -> Iterator[Watched]:
    found = Watched(chromium, opened)
    yield found
    found.close()


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page
