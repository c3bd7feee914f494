"""/ui/keys: a key is made, shown this once, and revoked; what is wrong is said where it was typed."""

import html
import re
import uuid
from typing import Any

import pytest

from app.identity.key import PATTERN
from app.identity.scopes import ALL_SCOPES, Scope
from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor, text_of

HOSTILE = "<script>alert(1)</script>\"'&\u202e" + "x" * 60


def wanted(**more: Any) -> dict[str, Any]:
    """What the form sends that somebody has filled in, each time for a tenant of its own."""
    return {
        "name": "reports",
        "tenant": f"t-{uuid.uuid4().hex[:12]}",
        "scopes": ["jobs:write", "jobs:read"],
        "expires": "",
    } | more


def made_by(admin: Visitor, fields: dict[str, Any]) -> str:
    """The key on the page that answers."""
    admin.get("/ui/keys")
    answer = admin.post("/ui/keys", fields)
    assert answer.status_code == 200, text_of(answer.text)
    assert answer.headers["cache-control"] == "no-store"
    found = re.search(rf'<code id="new-key">({PATTERN})</code>', answer.text)
    assert found is not None, text_of(answer.text)
    return found[1]


def refused(admin: Visitor, **fields: Any) -> str:
    """The page that says what is wrong with them."""
    admin.get("/ui/keys")
    answer = admin.post("/ui/keys", wanted(**fields))
    assert answer.status_code == 422
    assert "new-key" not in answer.text
    return answer.text


def field_of(page: str, name: str) -> str:
    """The field of that name with all that is said about it."""
    found = re.search(rf'<div class="field[^"]*"><label for="f-{name}".*?</div>', page, re.DOTALL)
    assert found is not None, page
    return html.unescape(found[0])


def test_a_key_that_was_made_works_and_may_what_was_ticked(guarded: Server, admin: Visitor) -> None:
    fields = wanted(expires="86400", **{"limit-requests": "7"})
    key = made_by(admin, fields)
    with guarded.client(key) as client:
        assert client.get("/jobs").status_code == 200
        assert client.get("/workers").status_code == 403
    with guarded.client() as root:
        [shown] = root.get("/keys", params={"tenant": fields["tenant"]}).json()["keys"]
    assert (shown["name"], shown["scopes"]) == ("reports", ["jobs:write", "jobs:read"])
    assert shown["limits"] == {"requests": 7}
    assert shown["expires_at"] is not None


def test_a_key_is_shown_once_and_never_again(admin: Visitor) -> None:
    fields = wanted()
    key = made_by(admin, fields)
    for path in ("/ui/keys", f"/ui/keys?tenant={fields['tenant']}"):
        page = admin.get(path)
        assert fields["tenant"] in page
        assert key not in page
        assert "is shown this once" not in text_of(page)
    assert all(key not in (value or "") for value in admin.http.cookies.values())


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        ("name", "", "length >= 1"),
        ("name", "x" * 129, "length <= 128"),
        ("tenant", "a/b", "letters, digits"),
        ("tenant", HOSTILE, "letters, digits"),
        ("expires", "soon", "expected a number"),
        ("limit-requests", "many", "expected an integer"),
        ("limit-requests", "-1", "expected an integer"),
        ("limit-requests", "0", ">= 1"),
        ("limit-requests", "9" * 4000, "expected an integer"),
        ("limit-body_bytes", "12", ">= 1024"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(admin: Visitor, field: str, given: str, said: str) -> None:
    page = refused(admin, **{field: given})
    shown = field_of(page, field)
    assert 'aria-invalid="true"' in shown
    assert said in shown
    assert 'role="alert"' in page


def test_what_was_typed_is_kept_when_something_is_wrong(admin: Visitor) -> None:
    fields = {"name": HOSTILE, "tenant": "a/b", "scopes": ["jobs:work"], "expires": "604800"}
    page = refused(admin, **fields, **{"limit-jobs": "lots", "limit-streams": "3"})
    assert f'value="{HOSTILE}"' in field_of(page, "name")
    assert HOSTILE not in page
    assert 'value="a/b"' in field_of(page, "tenant")
    assert '<option value="604800" selected>' in page
    ticked = re.findall(r'name="scopes" value="([a-z:]+)" checked', page)
    assert ticked == ["jobs:work"]
    # Both that are wrong are named, and the part of the form that one of them is in stands open.
    assert "expected an integer" in field_of(page, "limit-jobs")
    assert 'value="3"' in field_of(page, "limit-streams")
    assert "<details open>" in page


def test_a_key_that_may_do_nothing_is_none(admin: Visitor) -> None:
    page = refused(admin, scopes=[])
    assert "choose at least one" in text_of(page)
    assert " checked" not in page
    assert "scopes: must be some of" in text_of(refused(admin, scopes=["jobs:read", "everything"]))


def test_a_revoked_key_is_refused_and_gone_from_the_list(guarded: Server, admin: Visitor) -> None:
    fields = wanted()
    key = made_by(admin, fields)
    page = admin.get(f"/ui/keys?tenant={fields['tenant']}")
    revoke = re.search(r'action="(/ui/keys/\w+/revoke)"[^>]* data-confirm="([^"]*)"', page)
    assert revoke is not None
    assert revoke[2] == "Revoke the key reports?"
    assert "The key is revoked." in admin.do(revoke[1])
    with guarded.client(key) as client:
        wait_until(lambda: client.get("/jobs").status_code == 401, 30)
    assert fields["tenant"] not in re.sub(r'value="[^"]*"', "", admin.get("/ui/keys"))
    # Once more, from a page that was still open.
    assert "There is no such key." in admin.do(revoke[1])


@pytest.mark.parametrize("key_id", ["nothing", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "%00", "x" * 3000])
def test_there_is_nothing_to_revoke_of_a_key_that_is_not(admin: Visitor, key_id: str) -> None:
    admin.get("/ui/keys")
    assert "There is no such key." in admin.do(f"/ui/keys/{key_id}/revoke")


def test_who_may_only_look_sees_no_form_and_gets_nothing_done(guarded: Server, stranger: Visitor) -> None:
    stranger.sign_in(guarded.key("default", Scope.ADMIN_READ))
    page = stranger.get("/ui/keys")
    assert "Make a key" not in page
    assert "/revoke" not in page
    for path in ("/ui/keys", "/ui/keys/01ARZ3NDEKTSV4RRFFQ69G5FAV/revoke"):
        answer = stranger.post(path, wanted())
        assert answer.status_code == 403
        assert Scope.ADMIN_WRITE in answer.text


def test_who_may_not_administer_does_not_see_keys(guarded: Server, stranger: Visitor) -> None:
    stranger.sign_in(guarded.key("default", Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.JOBS_WORK))
    assert Scope.ADMIN_READ in stranger.get("/ui/keys", 403)


def test_names_of_keys_are_shown_as_text(guarded: Server, admin: Visitor) -> None:
    tenant = f"t-{uuid.uuid4().hex[:12]}"
    guarded.key(tenant, *ALL_SCOPES, name=HOSTILE)
    page = admin.get(f"/ui/keys?tenant={tenant}")
    assert "<script>alert" not in page
    assert html.escape("<script>alert(1)</script>") in page
    assert HOSTILE in text_of(page)


def test_a_tenant_without_keys_is_told_how_to_make_one(admin: Visitor) -> None:
    page = text_of(admin.get("/ui/keys?tenant=nobody-of-that-name"))
    assert "There is no key yet." in page
    assert "foreman keys create" in page


def test_without_authentication_the_page_says_that_nobody_needs_a_key(visitor: Visitor) -> None:
    assert "Authentication is off" in text_of(visitor.get("/ui/keys"))


def test_a_page_that_cannot_be_is_refused(admin: Visitor) -> None:
    assert "cursor: is not one of ours" in text_of(admin.get("/ui/keys?cursor=nonsense", 422))
