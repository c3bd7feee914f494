"""Server-sent events: how an event of the log looks on the wire, as JSON and as a frame."""

from typing import Any

import orjson

from app.store.events import Event, Page

# A comment is a line, not a block: it needs no blank line after it, and parsers that take every blank line
# for an event see none.
COMMENT = b": still here\n"
DONE = b"data: [DONE]\n\n"


def event_json(event: Event, **more: Any) -> bytes:
    """One event as specified; what a caller posted goes out as it came in."""
    data = event.data
    return orjson.dumps(
        {
            **more,
            "seq": event.seq,
            "type": event.type,
            "state": event.state,
            "reason": event.reason,
            "data": None if data is None else orjson.Fragment(data),
            "at": event.at,
        },
        option=orjson.OPT_UTC_Z,
    )


def frame(id_: object | None, type_: str | None, body: bytes) -> bytes:
    """A block of SSE. A line break can only stand between two tokens of JSON, where a blank does as well."""
    if b"\n" in body or b"\r" in body:
        body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    head = b"" if id_ is None else b"id: %b\n" % str(id_).encode()
    if type_ is not None:
        head += b"event: %b\n" % type_.encode()
    return b"%bdata: %b\n\n" % (head, body)


def page_frames(page: Page) -> bytes:
    """A page of a log as frames; made once, however many readers share the page."""
    if page.rendered is None:
        page.rendered = b"".join([frame(event.seq, event.type, event_json(event)) for event in page.events])
    return page.rendered
