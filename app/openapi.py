"""Writes openapi/openapi.json from the code: `make openapi`. A test fails when the two differ."""

import json
from pathlib import Path

from app.config import load_settings
from app.main import create_app

DOCUMENT = Path("openapi/openapi.json")


def render() -> str:
    settings = load_settings({}, database_url="postgresql://nowhere/")
    return json.dumps(create_app(settings).app.openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render())
