"""What a job left behind, as callers see it in its document and in webhooks. Pure."""

from typing import Any

import msgspec
import orjson

from app.jobs.lanes import LLM_KINDS

INLINE_LIMIT = 256 * 1024
# The artifact that every LLM job has: its answer.
COMPLETION = "completion"
# The blocks of an answer that are what the model said.
_TEXTS = ("text", "output_text")
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


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Item(msgspec.Struct):
    content: list[_Block] | None = None
    type: str = ""


class _LlmResult(msgspec.Struct):
    message: _Message | None = None
    response: str | None = None
    # Not "or None": in a union, Raw would take nothing but null.
    embeddings: msgspec.Raw = msgspec.Raw(b"null")
    embedding: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[_Choice] | None = None
    # Of responses and of messages: texts among calls and thoughts.
    output: list[_Item] | None = None
    content: list[_Block] | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


def completion(kind: str, result: str | None) -> str | None:
    """The text that an LLM job produced, read out of its result in any dialect; None for other kinds."""
    if kind not in LLM_KINDS or result is None:
        return None
    try:
        found = msgspec.json.decode(result, type=_LlmResult)
    except msgspec.MsgspecError:
        return None
    for vectors in (found.embeddings, found.embedding, found.data):
        if bytes(vectors) != b"null":
            return bytes(vectors).decode()
    if found.message is not None:
        return found.message.content or ""
    if found.choices:
        first = found.choices[0]
        return (first.message.content if first.message else first.text) or ""
    if found.output is not None:
        return "".join([_text(item.content) for item in found.output if item.type == "message"])
    return found.response or _text(found.content)


def _text(blocks: list[_Block] | None) -> str:
    return "".join([block.text or "" for block in blocks or () if block.type in _TEXTS])
