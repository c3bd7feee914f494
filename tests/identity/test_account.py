"""What one key may do, and what it has open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Forbidden, RateLimited
from app.identity.account import EVERYBODY, NOBODY, Account
from app.identity.limits import UNLIMITED, Limits, RequestRate
from app.identity.scopes import ALL_SCOPES, Scope

tokens = st.binary(min_size=18, max_size=18).map(bytes.hex)


class Wire:
    waits = 0
    told = False

    def key_ended(self) -> None:
        self.told = True


def account(**given: int) -> Account:
    return Account("k", "t", [Scope.JOBS_READ], Limits(**given), lease_secret=b"k" * 32)


def test_a_key_may_do_what_its_scopes_say() -> None:
    account().require(Scope.JOBS_READ)
    account().require(None)
    with pytest.raises(Forbidden) as refused:
        account().require(Scope.JOBS_WRITE)
    assert "jobs:write" in refused.value.detail
    for scope in ALL_SCOPES:
        EVERYBODY.require(scope)
        with pytest.raises(Forbidden):
            NOBODY.require(scope)


@given(tokens, st.text("ABC", min_size=1))
def test_a_lease_token_is_another_for_every_key_and_comes_back_by_its_own(token: str, job_id: str) -> None:
    mine, other = account(), Account("o", "t", ALL_SCOPES, UNLIMITED, lease_secret=b"o" * 32)
    handed_out = mine.lease_token(job_id, token)
    assert handed_out != token
    assert mine.lease_token(job_id, handed_out) == token
    assert other.lease_token(job_id, handed_out) != token
    assert mine.lease_token(job_id + "X", handed_out) != token
    assert EVERYBODY.lease_token(job_id, token) == token, "where there are no keys nothing is bound to them"


@pytest.mark.parametrize("odd", ["", "x", "00", "zz" * 18, "ä" * 36, "0" * 35, "0" * 38])
def test_what_is_no_token_stays_none(odd: str) -> None:
    assert account().lease_token("A", odd) == odd


def test_places_end_and_come_back() -> None:
    mine = account(streams=2)
    with mine.streams.place(), mine.streams.place():
        with pytest.raises(RateLimited, match="already has 2 streams") as refused:
            mine.streams.take()
        assert refused.value.retry_after
    with mine.streams.place():
        assert mine.streams.taken == 1
    assert mine.streams.taken == 0


def test_connections_are_counted_and_told_when_the_key_ends() -> None:
    mine, wires = account(connections=2), [Wire(), Wire()]
    for wire in wires:
        mine.comes_by(wire)
    with pytest.raises(RateLimited):
        mine.comes_by(Wire())
    assert mine.may_wait
    mine.end()
    assert all(wire.told for wire in wires)
    assert not mine.may_wait
    mine.comes_by(Wire())


def test_a_rate_lets_so_many_pass_and_then_as_many_a_second() -> None:
    now = 100.0
    rate = RequestRate(10)
    for left in range(9, -1, -1):
        rate.take(now)
        assert rate.lines() == b"".join(b"%b: %b\r\n" % each for each in rate.headers())
        assert dict(rate.headers())[b"ratelimit"] == b'"requests";r=%d;t=1' % left
    with pytest.raises(RateLimited) as refused:
        rate.take(now)
    assert refused.value.retry_after == pytest.approx(0.1)
    assert refused.value.headers == {
        "ratelimit-policy": '"requests";q=10;w=1',
        "ratelimit": '"requests";r=0;t=1',
    }
    now += 0.1001
    rate.take(now)
    with pytest.raises(RateLimited):
        rate.take(now)
    now += 3600
    for _ in range(10):
        rate.take(now)
    with pytest.raises(RateLimited):
        rate.take(now)


def test_limits_of_its_own_go_before_the_usual_ones() -> None:
    mine = Limits(streams=5).over(Limits(streams=1, requests=2))
    assert (mine.streams, mine.requests, mine.jobs) == (5, 2, None)
