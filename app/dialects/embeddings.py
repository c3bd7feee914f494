"""Embeddings: requests and answers, both ways, and Ollama's older `/api/embeddings`.

OpenAI's own client asks for base64: little-endian 32-bit floats.
"""

import base64
import struct
from collections.abc import Mapping
from typing import Any

from app.dialects.runner import is_legacy_embeddings
from app.dialects.shapes import (
    Dialect,
    Frame,
    GarbledAnswer,
    UntranslatableRequest,
    as_count,
    as_dict,
    as_list,
    without_nulls,
)


def embed_request_to_openai(body: Mapping[str, Any]) -> Frame:
    text = body.get("prompt") if is_legacy_embeddings(body) else body.get("input")
    kept = without_nulls({"dimensions": body.get("dimensions")})
    return {"model": body.get("model"), "input": text, "encoding_format": "float", **kept}


def embed_request_to_ollama(body: Mapping[str, Any]) -> Frame:
    text = body.get("input")
    if not isinstance(text, str) and not (isinstance(text, list) and all(isinstance(t, str) for t in text)):
        raise UntranslatableRequest("invalid input: this target embeds a text or a list of texts")
    kept = {name: body.get(name) for name in ("dimensions", "truncate", "options", "keep_alive")}
    return {"model": body.get("model"), "input": text, **without_nulls(kept)}


def check_embed_answer(answer: Mapping[str, Any], dialect: Dialect) -> None:
    """Raises GarbledAnswer for JSON that holds no embeddings."""
    expected = ("embeddings", "embedding") if dialect == "ollama" else ("data",)
    if not any(isinstance(answer.get(name), list) for name in expected):
        raise GarbledAnswer("no embeddings", str(answer)[:500])


def embed_answer_to_openai(answer: Mapping[str, Any], model: str, encoding_format: str) -> Frame:
    vectors = [answer["embedding"]] if "embedding" in answer else as_list(answer.get("embeddings"))
    tokens = as_count(answer.get("prompt_eval_count"))
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def embed_answer_to_ollama(answer: Mapping[str, Any], model: str, total_duration: int, legacy: bool) -> Frame:
    items = sorted((as_dict(item) for item in as_list(answer.get("data"))), key=_position)
    vectors = [_decoded(item.get("embedding")) for item in items]
    if legacy:
        return {"embedding": vectors[0] if vectors else []}
    tokens = as_count(as_dict(answer.get("usage")).get("prompt_tokens"))
    return {
        "model": model,
        "embeddings": vectors,
        "total_duration": total_duration,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }


def _position(item: Frame) -> int:
    return as_count(item.get("index"))


def _encoded(vector: Any, encoding_format: str) -> Any:
    if encoding_format.lower() != "base64":
        return vector
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (TypeError, struct.error, OverflowError):
        raise GarbledAnswer("an embedding is no list of numbers", str(vector)[:200]) from None


def _decoded(vector: Any) -> list[Any]:
    if not isinstance(vector, str):
        return as_list(vector)
    try:
        packed = base64.b64decode(vector, validate=True)
        return list(struct.unpack(f"<{len(packed) // 4}f", packed))
    except (ValueError, struct.error):
        raise GarbledAnswer("an embedding is no base64 of 32-bit floats", vector[:200]) from None
