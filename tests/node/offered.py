"""Which surfaces there are, by the committed document."""

import json
import re

import pytest

from tests.conftest import ROOT


def _plain(path: str) -> str:
    """Whatever its parameters are called."""
    return re.sub(r"{[^}]*}", "{}", path)


_DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_text())
OFFERED = frozenset(map(_plain, _DOCUMENT["paths"]))


def needs(*paths: str) -> pytest.MarkDecorator:
    """For tests of a surface that may not be there yet."""
    missing = [path for path in paths if _plain(path) not in OFFERED]
    return pytest.mark.skipif(bool(missing), reason=f"not there yet: {', '.join(missing)}")
