"""What is served beside the pages: ours, or vendored as published."""

import gzip
import hashlib
import re

import httpx

from app.dashboard.assets import ASSETS, FOLDER
from tests.conftest import Server

# As npm has them; the files are not to be edited.
VENDORED = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "idiomorph-ext.min.js": "5811b9a7eda14878b7dab4378bf60432e1bb6f11fcfb970cc26540642650181e",
}


def test_vendored_files_are_as_published() -> None:
    for name, digest in VENDORED.items():
        assert hashlib.sha256(ASSETS[name].plain).hexdigest() == digest


def test_what_is_not_ours_is_named_with_its_version_and_licence() -> None:
    told = (FOLDER / "VENDORED.md").read_text()
    assert all(f"`{name}`" in told for name in VENDORED)


def test_assets_are_kept_for_ever_under_a_name_that_changes_with_them(opened: Server) -> None:
    for asset in ASSETS.values():
        answer = httpx.get(opened.url + asset.url, headers={"accept-encoding": "gzip"})
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.content == asset.plain
        plain = httpx.get(opened.url + asset.url, headers={"accept-encoding": "identity"})
        assert plain.content == asset.plain
        assert gzip.decompress(asset.compressed) == asset.plain


def test_nothing_else_is_served_from_there(opened: Server) -> None:
    for path in ("VENDORED.md", "../page.py", "%2e%2e/page.py", "", "foreman.css/x"):
        assert httpx.get(f"{opened.url}/ui/static/{path}").status_code == 404


def test_style_and_script_name_no_other_host() -> None:
    for name, asset in ASSETS.items():
        if name not in VENDORED:
            found = set(re.findall(rb"https?://[^\s\"')]+", asset.plain)) - {b"http://www.w3.org/2000/svg"}
            assert found == set(), name


def test_all_that_the_first_page_loads_is_small() -> None:
    assert sum(len(asset.compressed) for asset in ASSETS.values()) < 60_000
