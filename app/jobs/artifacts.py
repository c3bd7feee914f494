"""What a job left behind, as callers see it in its document and in webhooks. Pure."""

from typing import Any

import orjson

from app.jobs.results import completion

INLINE_LIMIT = 256 * 1024
# The artifact that every LLM job has: its answer.
COMPLETION = "completion"
# The whole result under the name by which webhooks refer to it when it is too large for them.
RESULT = "result"


def artifact_list(job_id: str, kind: str, result: str | None, stored: str | None) -> list[dict[str, Any]]:
    """The stored ones (a JSON array), small texts inline; an LLM job's answer always counts as one."""
    found = [
        artifact(job_id, each["name"], each["content_type"], each["size"], each.get("inline"))
        for each in orjson.loads(stored or "[]")
    ]
    text = completion(kind, result)
    if text is not None and not any(each["name"] == COMPLETION for each in found):
        size = len(text.encode())
        inline = text if size <= INLINE_LIMIT else None
        found.append(artifact(job_id, COMPLETION, completion_type(kind), size, inline))
    return found


def artifact(job_id: str, name: str, content_type: str, size: int, inline: str | None) -> dict[str, Any]:
    place = {"url": artifact_url(job_id, name)} if inline is None else {"inline": inline}
    return {"name": name, "content_type": content_type, "size": size, **place}


def artifact_url(job_id: str, name: str) -> str:
    return f"/jobs/{job_id}/artifacts/{name}"


def completion_type(kind: str) -> str:
    return "application/json" if kind == "embed" else "text/plain; charset=utf-8"
