"""The same request to a real llama.cpp server, directly and through Foreman: nothing may be lost or changed.

Ids and times are compared by their kind alone. What else may differ stands in `ALLOWED`, with its reason, and a
difference that no request shows any more fails as well.
"""

import fnmatch
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.dialects import corpus
from tests.dialects.corpus import Case
from tests.fakes.openai_llama import MODEL, LlamaServer
from tests.serving import serving

# How long things took, by the names of llama.cpp.
DURATIONS = ("_ms", "_per_second")
MISSING = "(nothing)"


@dataclass(frozen=True)
class Allowed:
    requests: str
    path: str
    reason: str

    def covers(self, case: Case, path: str) -> bool:
        return fnmatch.fnmatchcase(case.name, self.requests) and fnmatch.fnmatchcase(path, self.path)


ALLOWED = [
    Allowed("* no JSON", "error*", "refused before there is a job: no model is known that could be asked"),
    Allowed("* a list", "error*", "the same"),
    Allowed("* no model", "error*", "the same"),
    Allowed("* nothing at all", "error*", "the same"),
    Allowed(
        f"{corpus.CHAT} an unknown model",
        "*",
        "a model that no target lists is a 404 here, as it is at OpenAI",
    ),
]


@dataclass
class Answer:
    status: int
    media_type: str
    # A whole answer, or the chunks of a stream.
    said: list[Any] = field(default_factory=list)
    done: bool = False


@pytest.fixture(scope="module")
def foreman(
    postgres: EmbeddedPostgres, llama: LlamaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("differential")
    targets = folder / "targets.toml"
    targets.write_text(f'[targets.llama]\nurl = "{llama.url}"\ndialect = "openai"\nslots = 4\n')
    with serving(postgres, folder, FOREMAN_TARGETS=str(targets)) as server:
        wait_until(lambda: MODEL in httpx.get(f"{server.url}/v1/models").text)
        yield server


@pytest.mark.parametrize("cases", [corpus.chats(), corpus.completions(), corpus.embeddings()], ids=len)
def test_nothing_is_lost_or_changed(foreman: Server, llama: LlamaServer, cases: list[Case]) -> None:
    found: list[str] = []
    unseen = {
        each for each in ALLOWED if any(fnmatch.fnmatchcase(case.name, each.requests) for case in cases)
    }
    with httpx.Client(timeout=120) as client:
        for case in cases:
            direct, through = ask(client, llama.url, case), ask(client, foreman.url, case)
            assert direct.said, f"{case.name}: nothing to compare with"
            for path, theirs, ours in differences(direct, through):
                allowed = [each for each in ALLOWED if each.covers(case, path)]
                unseen -= set(allowed)
                if not allowed:
                    found.append(f"{case.name}: {path}: {theirs!r} became {ours!r}")
    assert not found, "\n".join([f"{len(found)} differences", *found[:60]])
    assert not unseen


def test_responses_say_what_those_of_the_target_do(foreman: Server, llama: LlamaServer) -> None:
    """There they are translated: what both have is compared."""
    with httpx.Client(timeout=120) as client:
        for case in corpus.responses():
            direct, through = ask(client, llama.url, case), ask(client, foreman.url, case)
            if case.name == f"{corpus.RESPONSES} a schema":
                # Of which llama.cpp takes no notice in responses; the chat that Foreman makes of it does.
                assert gist(direct)["items"] != gist(through)["items"]
                assert counts(direct.said[0]) == counts(through.said[0])
            else:
                assert gist(through) == gist(direct), case.name


# What Foreman says otherwise of the same response, streamed.
CUT_OFF = "llama.cpp calls complete what was cut off at max_output_tokens; OpenAI calls it incomplete"
TOLD_OTHERWISE = {"status": CUT_OFF, "type": CUT_OFF}


def test_streamed_responses_have_every_event_and_every_field_of_the_targets(
    foreman: Server, llama: LlamaServer
) -> None:
    found, otherwise = [], set()
    with httpx.Client(timeout=120) as client:
        for case in corpus.streamed_responses():
            direct, through = ask(client, llama.url, case), ask(client, foreman.url, case)
            if case.name == f"{corpus.RESPONSES} a schema, streamed":
                assert counts(direct.said[-1]["response"]) == counts(through.said[-1]["response"])
                continue
            assert len(direct.said) == len(through.said) > 8, case.name
            assert [each["sequence_number"] for each in through.said] == list(range(len(through.said)))
            # The target says it beside the response, and Foreman within.
            timings = through.said[-1]["response"]["timings"]
            assert timings.keys() == direct.said[-1].pop("timings").keys()
            # Whoever asks second finds more in the target's cache.
            assert cached(direct) <= cached(through) == timings["cache_n"]
            for path, theirs, ours in compared("", direct.said, through.said):
                name = path.rpartition(".")[2]
                if theirs == MISSING or name == "cached_tokens":
                    continue
                otherwise.add(name)
                is_cut_off = str(theirs).replace("completed", "incomplete") == ours
                if name not in TOLD_OTHERWISE or not is_cut_off:
                    found.append(f"{case.name}: {path}: {theirs!r} became {ours!r}")
    assert not found, "\n".join([f"{len(found)} differences", *found[:60]])
    assert otherwise == TOLD_OTHERWISE.keys()


def cached(answer: Answer) -> int:
    return int(answer.said[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"])


def test_whoever_attaches_gets_the_same_chunks_from_any_place(foreman: Server) -> None:
    """Long enough for rows in the log: what texts look like was said before the place that is gone on from."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1800}
    case = Case("a long one", corpus.CHAT, {**body, "ignore_eos": True, "temperature": 0, "stream": True})
    with httpx.Client(timeout=120) as client:
        with client.stream("POST", f"{foreman.url}{case.path}", json=case.body) as response:
            live = events(response.read().decode())
        place = f"{foreman.url}/jobs/{response.headers['x-foreman-job-id']}/stream?dialect=openai"
        attached = events(client.get(place).text)
        middle = [at for at, _ in attached][len(attached) // 2]
        resumed = events(client.get(place, headers={"last-event-id": middle}).text)
    assert {looks(each) for _, each in live[1:-1]} == {looks(each) for _, each in attached[1:-1]}
    assert (live[0][1], live[-1][1]) == (attached[0][1], attached[-1][1])
    assert text_of(live) == text_of(attached)
    assert {looks(each) for _, each in resumed[:-1]} == {looks(live[1][1])}
    assert text_of(attached).endswith(text_of(resumed))
    assert resumed[-1][1] == live[-1][1]


def events(text: str) -> list[tuple[str, Any]]:
    """Each chunk without its time, and with its id where the stream has them."""
    found, last = [], ""
    for line in text.splitlines():
        if line.startswith("id: "):
            last = line[4:]
        elif line.startswith("data: {"):
            found.append((last, {**json.loads(line[6:]), "created": 0}))
    return found


def looks(chunk: Any) -> str:
    """All of it but its text."""
    [choice] = chunk["choices"]
    return json.dumps({**chunk, "choices": [{**choice, "delta": list(choice["delta"])}]})


def text_of(told: list[tuple[str, Any]]) -> str:
    return "".join([each["choices"][0]["delta"].get("content") or "" for _, each in told])


def test_the_corpus_is_large_and_no_request_stands_there_twice() -> None:
    cases = [*corpus.chats(), *corpus.completions(), *corpus.embeddings()]
    cases += [*corpus.responses(), *corpus.streamed_responses()]
    assert len({case.name for case in cases}) == len(cases) >= 150
    assert len({f"{case.path}{case.body!r}" for case in cases}) == len(cases)


def ask(client: httpx.Client, url: str, case: Case) -> Answer:
    content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    headers = {"content-type": "application/json"}
    with client.stream("POST", f"{url}{case.path}", content=content, headers=headers) as response:
        text = response.read().decode()
    answer = Answer(response.status_code, response.headers["content-type"].partition(";")[0])
    if answer.media_type != "text/event-stream":
        answer.said = [json.loads(text)]
        return answer
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            answer.done = True
        elif data not in (line, "null"):
            # Nothing opens a stream of several prompts at llama.cpp; no client can make anything of that.
            answer.said.append(json.loads(data))
    # Choices are written side by side, as it happens; each keeps its own order.
    answer.said.sort(key=choice_of)
    return answer


def choice_of(chunk: Any) -> int:
    choices = chunk.get("choices")
    return choices[0]["index"] if choices else 1000


def differences(direct: Answer, through: Answer) -> Iterator[tuple[str, Any, Any]]:
    for name in ("status", "media_type", "done"):
        if getattr(direct, name) != getattr(through, name):
            yield name, getattr(direct, name), getattr(through, name)
    if direct.media_type == "text/event-stream":
        yield from compared("", direct.said, through.said)
    else:
        yield from compared("", direct.said[0], through.said[0])


def compared(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**theirs, **ours}:
            inside = f"{path}.{name}".lstrip(".")
            yield from compared(inside, theirs.get(name, MISSING), ours.get(name, MISSING))
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            yield f"{path}.length", theirs, ours
        for index, (one, other) in enumerate(zip(theirs, ours, strict=False)):
            yield from compared(f"{path}.{index}".lstrip("."), one, other)
    elif type(theirs) is not type(ours) or (theirs != ours and not is_id_or_time(path, theirs)):
        yield path, theirs, ours


def is_id_or_time(path: str, value: Any) -> bool:
    name = path.rpartition(".")[2]
    if name in {"id", "item_id"}:
        # That of a token is a number, and stays what it is.
        return isinstance(value, str)
    return name in {"created", "created_at", "completed_at"} or name.endswith(DURATIONS)


def gist(answer: Answer) -> dict[str, Any]:
    whole = answer.said[0]
    items = [
        (item["type"], item.get("role"), [(part["type"], part["text"]) for part in item.get("content", [])])
        for item in whole["output"]
    ]
    told = {"status": answer.status, "object": whole["object"], "model": whole["model"]}
    return {**told, "items": items, "counts": counts(whole)}


def counts(response: Any) -> dict[str, int]:
    usage = response["usage"]
    return {name: usage[name] for name in ("input_tokens", "output_tokens", "total_tokens")}
