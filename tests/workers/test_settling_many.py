"""Settlements in one request: a completion as our client writes it is read quickly, and to the same effect."""

import pytest

from app.api.worker_schemas import plain_completion, plain_completions
from app.api.workers import _parse_entry
from app.errors import InvalidRequest
from app.jobs.states import Verb

JOB = "01J00000000000000000000001"
TOKEN = "0123456789abcdef0123456789abcdef0123"
HEAD = f'"job_id":"{JOB}","lease_token":"{TOKEN}","verb":"complete"'
RESULTS = ["null", "1.0", '"a\\"b\\u00e9"', '{"a": [1, 2,  {"b":1e400}], "a":2}', "[]", '"}"', '"é"']


def entry(result: str) -> bytes:
    return f'{{{HEAD},"result":{result}}}'.encode()


def spelt_otherwise(result: str) -> bytes:
    """The same members in the same order; the general way reads it."""
    return f'{{ {HEAD},"result": {result} }}'.encode()


@pytest.mark.parametrize("result", RESULTS)
def test_a_plain_completion_means_what_the_general_way_makes_of_it(result: str) -> None:
    quick = plain_completion(entry(result), 64)
    assert quick is not None
    assert (quick.job_id, quick.lease_token, quick.verb, quick.result) == (JOB, TOKEN, Verb.COMPLETE, result)
    assert plain_completion(spelt_otherwise(result), 64) is None
    # Fingerprints too: one sent twice, by either spelling or route, is one settlement.
    assert _parse_entry(spelt_otherwise(result), 64).settlement == quick
    assert _parse_entry(entry(result), 64).settlement == quick


@pytest.mark.parametrize(
    "text",
    [
        f"{{{HEAD}}}",
        f'{{{HEAD},"result":1,"usage":{{"prompt_tokens":3}}}}',
        f'{{{HEAD},"result":1,"result":2}}',
        f'{{{HEAD},"result":1 }}',
        f'{{"verb":"complete","job_id":"{JOB}","lease_token":"{TOKEN}","result":1}}',
        f'{{{HEAD},"result":{"[" * 40}{"]" * 40}}}',
    ],
)
def test_what_has_more_to_it_is_read_member_by_member(text: str) -> None:
    assert plain_completion(text.encode(), 40) is None
    settlement = _parse_entry(text.encode(), 64).settlement
    assert settlement is not None
    assert (settlement.job_id, settlement.lease_token, settlement.verb) == (JOB, TOKEN, Verb.COMPLETE)


@pytest.mark.parametrize("result", ["", "nul", "{", "1,2", '"\\ud800"', "NaN", '1,"unknown":2', "\x00"])
def test_what_is_no_result_is_refused_as_ever(result: str) -> None:
    assert plain_completion(entry(result), 64) is None
    with pytest.raises(InvalidRequest):
        _parse_entry(entry(result), 64)


def batch(*entries: bytes) -> bytes:
    return b"[" + b",".join(entries) + b"]"


def test_many_plain_completions_are_read_at_once_to_the_same_effect() -> None:
    entries = [entry(result) for result in RESULTS]
    assert plain_completions(batch(*entries)) == [plain_completion(each, 64) for each in entries]


@pytest.mark.parametrize(
    "text",
    [
        spelt_otherwise("1"),
        f"{{{HEAD}}}".encode(),
        f'{{{HEAD},"result":1,"usage":null}}'.encode(),
        f'{{{HEAD},"result":1,"result":2}}'.encode(),
        f'{{"lease_token":"{TOKEN}","job_id":"{JOB}","verb":"complete","result":1}}'.encode(),
        f'{{"job_id":"{JOB}","lease_token":"\\u0041","verb":"complete","result":1}}'.encode(),
        f'{{"job_id":"{JOB}","lease_token":"a-b","verb":"complete","result":1}}'.encode(),
        f'{{"job_id":"{JOB}","lease_token":"é","verb":"complete","result":1}}'.encode(),
        f'{{"job_id":"{JOB}","lease_token":"","verb":"complete","result":1}}'.encode(),
        f'{{"job_id":"{JOB}","lease_token":"{TOKEN}","verb":"heartbeat"}}'.encode(),
        b"1",
    ],
)
def test_one_that_is_not_plain_sends_its_batch_the_general_way(text: bytes) -> None:
    assert plain_completions(batch(entry("1"), entry("2"))) is not None
    assert plain_completions(batch(entry("1"), text)) is None
    assert plain_completions(batch(entry("1")) + b" ") is None
