"""What a model wrote is rendered harmless: nothing in it loads, runs or pretends."""

import re

import pytest

from app.dashboard.markdown import MAX_CHARACTERS, render

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](data:text/html,<script>1</script>)",
    "[x](vbscript:1)",
    "[x](/ui/jobs/1/delete)",
    "[x](//evil.example)",
    "[x]\n\n[x]: javascript:1",
    "<javascript:alert(1)>",
    "![x](https://evil.example/pixel.png)",
    '[x](https://a.example "\\" onmouseover=alert(1) \\"")',
    '```"><script>1</script>\n</code>\n```',
    "| <b>a</b> |\n|:--|\n| <i onclick=1>b</i> |",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_is_only_text(text: str) -> None:
    made = str(render(text))
    tags = re.findall(r"<(/?[a-zA-Z0-9]+)([^>]*)>", made)
    assert {name.lstrip("/") for name, _ in tags} <= {
        "p", "a", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"
    }  # fmt: skip
    for name, attributes in tags:
        assert " on" not in re.sub(r'"[^"]*"', '""', attributes), made
        assert "style" not in attributes
        for address in re.findall(r'href="([^"]*)"', attributes):
            assert name == "a"
            assert address.startswith("https://")


def test_a_link_to_the_web_tells_nothing_of_where_it_was_followed_from() -> None:
    assert (
        '<a href="https://a.example/?q=1&amp;r=2" rel="noopener noreferrer nofollow" target="_blank">x</a>'
        in render("[x](https://a.example/?q=1&r=2)")
    )


def test_headings_stand_below_those_of_the_page() -> None:
    assert str(render("# a\n\n###### b")) == "<h3>a</h3>\n<h6>b</h6>\n"


def test_what_people_write_is_laid_out() -> None:
    made = render("*a* **b** ~~c~~ `d`\n\n- e\n\n> f\n\n| g | h |\n|---|:-:|\n| 1 | 2 |")
    for tag in ("<em>a", "<strong>b", "<s>c", "<code>d", "<li>e", "<blockquote>", "<th>g", "<td>2"):
        assert tag in made


def test_a_long_text_is_cut_and_odd_ones_end() -> None:
    assert len(render("a" * (MAX_CHARACTERS + 50))) < MAX_CHARACTERS + 20
    for text in ("[" * 40_000, "> " * 40_000, "*_" * 40_000, "`" * 40_000, "\0\u202e\ufeff"):
        render(text)
