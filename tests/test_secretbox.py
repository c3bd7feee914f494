"""Secrets at rest: what opens, what does not, and how keys are given."""

import base64
import multiprocessing
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.secretbox import (
    GIVEN_UP,
    SealBroken,
    SecretBox,
    SecretBoxError,
    SecretKeyInvalid,
    SecretKeyUnknown,
    key_id_of,
)

OLD, NEW = bytes(32), bytes(range(32))
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@given(st.text(), st.text())
def test_what_was_sealed_opens_again(plaintext: str, aad: str) -> None:
    box = SecretBox([NEW])
    assert box.open(box.seal(plaintext, aad), aad) == plaintext


def test_a_sealed_secret_does_not_show_its_content_and_is_never_twice_the_same() -> None:
    box = SecretBox([NEW])
    sealed = {box.seal(SECRET, "01J") for _ in range(50)}
    assert len(sealed) == 50
    assert not any(SECRET[6:].encode() in each for each in sealed)


def test_a_sealed_secret_opens_only_where_it_belongs() -> None:
    box = SecretBox([NEW])
    sealed = box.seal(SECRET, "job 1")
    with pytest.raises(SealBroken):
        box.open(sealed, "job 2")


def test_any_changed_byte_is_noticed() -> None:
    box = SecretBox([NEW])
    sealed = box.seal(SECRET, "01J")
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises((SealBroken, SecretKeyUnknown)):
            box.open(bytes(changed), "01J")


def test_any_cut_is_noticed() -> None:
    box = SecretBox([NEW])
    sealed = box.seal(SECRET, "01J")
    for length in range(len(sealed)):
        with pytest.raises(SealBroken):
            box.open(sealed[:length], "01J")
    with pytest.raises(SealBroken):
        box.open(sealed + b"\0", "01J")


def test_the_first_key_seals_and_all_of_them_open() -> None:
    sealed_before = SecretBox([OLD]).seal(SECRET, "01J")
    rotating = SecretBox([NEW, OLD])
    assert rotating.open(sealed_before, "01J") == SECRET
    sealed_after = rotating.seal(SECRET, "01J")
    assert SecretBox([NEW]).open(sealed_after, "01J") == SECRET
    with pytest.raises(SecretKeyUnknown):
        SecretBox([OLD]).open(sealed_after, "01J")
    with pytest.raises(SecretKeyUnknown):
        SecretBox([NEW]).open(sealed_before, "01J")


@pytest.mark.parametrize(
    "encode",
    [
        lambda key: base64.b64encode(key).decode(),
        lambda key: base64.b64encode(key).decode().rstrip("="),
        lambda key: base64.urlsafe_b64encode(key).decode(),
        lambda key: f"  {base64.b64encode(key).decode()}\n",
    ],
)
def test_a_key_may_be_given_in_any_common_base64(encode: Callable[[bytes], str]) -> None:
    key = bytes(range(223, 255))  # has both letters in which the alphabets differ
    assert SecretBox.from_setting(encode(key)).open(SecretBox([key]).seal("x", ""), "") == "x"


def test_a_passphrase_is_the_same_key_in_every_process() -> None:
    first, second = (SecretBox.from_setting("correct horse battery staple") for _ in range(2))
    assert second.open(first.seal(SECRET, "01J"), "01J") == SECRET
    with pytest.raises(SecretKeyUnknown):
        SecretBox.from_setting("correct horse battery stable").open(first.seal(SECRET, "01J"), "01J")


def test_several_keys_are_given_with_commas() -> None:
    encoded = base64.b64encode(NEW).decode()
    rotating = SecretBox.from_setting(f"{encoded}, a passphrase from before,")
    assert SecretBox([NEW]).open(rotating.seal("x", ""), "") == "x"
    assert rotating.open(SecretBox.from_setting("a passphrase from before").seal("y", ""), "") == "y"


@pytest.mark.parametrize(
    "setting", ["", " , ", "too short", "fifteen letters", base64.b64encode(bytes(8)).decode()]
)
def test_a_weak_or_missing_key_is_refused_without_repeating_it(setting: str) -> None:
    with pytest.raises(SecretKeyInvalid) as caught:
        SecretBox.from_setting(setting)
    assert isinstance(caught.value, SecretBoxError)
    assert not setting.strip(" ,") or setting not in str(caught.value)


@pytest.mark.parametrize("keys", [[], [bytes(16)], [NEW, bytes(31)]])
def test_keys_of_the_wrong_length_are_refused(keys: list[bytes]) -> None:
    with pytest.raises(SecretKeyInvalid):
        SecretBox(keys)


def test_a_key_file_is_made_private_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secret.key"
    sealed = SecretBox.from_file(path).seal(SECRET, "01J")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretBox.from_file(path).open(sealed, "01J") == SECRET
    assert [entry.name for entry in path.parent.iterdir()] == ["secret.key"]


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    SecretBox.from_file(path)
    path.chmod(0o640)
    with pytest.raises(SecretKeyInvalid, match="chmod 600"):
        SecretBox.from_file(path)


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe", base64.b64encode(bytes(31))])
def test_a_key_file_without_a_key_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SecretKeyInvalid, match="does not contain a key"):
        SecretBox.from_file(path)
    assert path.read_bytes() == content


def test_a_key_file_that_appears_at_the_last_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret.key"
    sealed = SecretBox.from_file(path).seal(SECRET, "01J")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert SecretBox.from_file(path).open(sealed, "01J") == SECRET


def _seal_with_file(path: Path) -> bytes:
    return SecretBox.from_file(path).seal(SECRET, "01J")


def test_processes_that_start_together_agree_on_one_key_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        sealed = pool.map(_seal_with_file, [path] * 8, chunksize=1)
    assert {SecretBox.from_file(path).open(each, "01J") for each in sealed} == {SECRET}


def test_a_sealed_secret_names_its_key() -> None:
    rotating = SecretBox([NEW, OLD])
    assert rotating.key_ids == (*SecretBox([NEW]).key_ids, *SecretBox([OLD]).key_ids)
    assert key_id_of(rotating.seal(SECRET, "01J")) == rotating.key_ids[0]
    assert SecretBox([OLD, OLD]).key_ids == SecretBox([OLD]).key_ids


def test_one_that_was_given_up_says_so_and_needs_no_key() -> None:
    assert key_id_of(GIVEN_UP) == b""
    with pytest.raises(SealBroken, match="given up"):
        SecretBox([NEW]).open(GIVEN_UP, "01J")


def test_a_key_file_may_have_an_old_key_behind_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_text(f"{base64.b64encode(NEW).decode()},\n{base64.b64encode(OLD).decode()}\n")
    path.chmod(0o600)
    assert SecretBox.from_file(path).key_ids == SecretBox([NEW, OLD]).key_ids
    path.write_text(f"{base64.b64encode(NEW).decode()},a passphrase is no key file")
    with pytest.raises(SecretKeyInvalid, match="does not contain a key"):
        SecretBox.from_file(path)
