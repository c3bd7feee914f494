"""What a model wrote, as a page may show it: Markdown, with nothing in it that loads, runs or pretends.

No HTML of its own, no pictures (they would call home), and links only to the web, which learn nothing of
where they were followed from. Everything else stays the text that it is.
"""

from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup

# Its time grows with the length, for odd texts with the square of it: this much takes a tenth of a second.
MAX_CHARACTERS = 32_000
_SCHEMES = frozenset({"http", "https", "mailto"})


class _Renderer(RendererHTML):
    def link_open(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, _env: MutableMapping[str, Any]
    ) -> str:
        tokens[index].attrSet("rel", "noopener noreferrer nofollow")
        tokens[index].attrSet("target", "_blank")
        return self.renderToken(tokens, index, options, _env)

    def th_open(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, _env: MutableMapping[str, Any]
    ) -> str:
        # How a column is aligned would be a style of its own, which pages do not allow.
        return f"<{tokens[index].tag}>"

    td_open = th_open

    def heading_open(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, _env: MutableMapping[str, Any]
    ) -> str:
        return self._below(tokens[index], "<{}>")

    def heading_close(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, _env: MutableMapping[str, Any]
    ) -> str:
        return self._below(tokens[index], "</{}>\n")

    def _below(self, token: Token, form: str) -> str:
        """Under the headings of the page, whatever the text believes it is."""
        return form.format(f"h{min(6, int(token.tag[1:]) + 2)}")


def _is_web(url: str) -> bool:
    try:
        return urlsplit(url).scheme.lower() in _SCHEMES
    except ValueError:
        return False


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable(
        ["table", "strikethrough"]
    )
    parser.disable(["image", "html_block", "html_inline"])
    # A link to anywhere else stays text: `javascript:`, `data:`, and paths of this very server.
    parser.validateLink = _is_web  # type: ignore[method-assign]  # the library's own way to say so
    return parser


_PARSER = _parser()


@lru_cache(maxsize=32)
def render(text: str) -> Markup:
    """The text up to MAX_CHARACTERS; whoever has a longer one says so."""
    return Markup(_PARSER.render(text[:MAX_CHARACTERS]))  # noqa: S704 - made by our renderer, HTML is off
