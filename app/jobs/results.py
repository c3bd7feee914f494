"""Reading the results of LLM jobs, in either dialect."""

import msgspec

from app.jobs.lanes import LLM_KINDS


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None


class _LlmResult(msgspec.Struct):
    message: _Message | None = None
    response: str | None = None
    # Not "or None": in a union, Raw would take nothing but null.
    embeddings: msgspec.Raw = msgspec.Raw(b"null")
    embedding: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[_Choice] | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


def completion(kind: str, result: str | None) -> str | None:
    """The text that an LLM job produced, read out of its result; None for other kinds."""
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
    return found.response or ""
