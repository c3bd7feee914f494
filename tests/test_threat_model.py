"""The page about threats names tests: each of them exists, and every point of the list has some."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
# OWASP API Security Top 10, edition 2023.
RISKS = {
    1: "Broken object level authorization",
    2: "Broken authentication",
    3: "Broken object property level authorization",
    4: "Unrestricted resource consumption",
    5: "Broken function level authorization",
    6: "Unrestricted access to sensitive business flows",
    7: "Server side request forgery",
    8: "Security misconfiguration",
    9: "Improper inventory management",
    10: "Unsafe consumption of APIs",
}


def names_in(path: Path) -> set[str]:
    """The tests that pytest would collect there by name."""
    found = ast.parse(path.read_text()).body
    return {
        each.name
        for each in found
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
    }


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_a_test_that_the_page_names_exists(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    assert not name or name in names_in(ROOT / path)


def test_every_test_on_the_page_is_written_such_that_it_is_looked_for() -> None:
    assert len(re.findall(r"\btest_\w+(?!\w|\.py)", PAGE.replace(".py", ""))) == sum(
        1 + bool(name) for _, name in NAMED
    )


@pytest.mark.parametrize(("number", "risk"), RISKS.items())
def test_every_risk_of_the_list_has_a_section_with_tests(number: int, risk: str) -> None:
    section = re.search(rf"^### API{number}: {risk}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", section[1])


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/threat-model.md", "docs/deployment.md"])
def test_what_the_page_links_to_exists(page: str) -> None:
    path = ROOT / page
    for link, anchor in re.findall(r"\]\(([^)#:]*)(#[\w-]+)?\)", path.read_text().replace("\n", " ")):
        linked = path.parent / link if link else path
        assert linked.is_file(), link
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
        anchors = {"#" + re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors, (link, anchor)
