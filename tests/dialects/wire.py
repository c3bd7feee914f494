"""A job of either dialect run on a target of either dialect, over a real socket, as executors do it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from app.dialects import TARGET_DIALECTS
from app.dialects.framing import parse_frame
from app.dialects.shapes import Kind
from app.dialects.translate import ResponseTranslator, translate_request
from app.dialects.usage import Usage
from tests.dialects.frames import is_complete


@dataclass
class Ran:
    frames: list[dict[str, Any]] = field(default_factory=list)
    response: dict[str, Any] = field(default_factory=dict)
    usage: Usage | None = None
    error: str | None = None


def run_on(url: str, kind: Kind, body: dict[str, Any], dialect: str, target: str, **extra: Any) -> Ran:
    """`extra` is put into the body that goes over the wire."""
    ours, theirs = TARGET_DIALECTS[dialect], TARGET_DIALECTS[target]
    sent = theirs.streaming_request(kind, translate_request(kind, body, ours, theirs), body["model"]) | extra
    translator = ResponseTranslator(
        kind,
        theirs,
        ours,
        body["model"],
        "01JTEST",
        datetime.now(UTC),
        asked=body,
    )
    ran = Ran()

    def take(frame: dict[str, Any]) -> None:
        ran.frames.extend(translator.feed(frame, datetime.now(UTC)))

    with httpx.stream("POST", url + theirs.endpoint(kind, sent), json=sent, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        if kind == "embed":
            take(parse_frame(answer.read()))
        else:
            decoder = theirs.decoder()
            for data in answer.iter_raw():
                for frame in decoder.feed(data):
                    take(frame)
    ran.frames += translator.finish(datetime.now(UTC))
    ran.error = translator.error
    ran.usage = translator.usage()
    folder = ours.fold(kind)
    for frame in ran.frames:
        folder.feed(frame)
    if is_complete(folder):
        ran.response = folder.response()
    return ran
