"""Who paused a queue: the name of the key, told to operators, and to nobody of another tenant."""

from app.identity.scopes import ALL_SCOPES
from tests.conftest import Server


def test_a_paused_queue_says_which_key_paused_it_first(guarded: Server, tenant: str) -> None:
    queue = f"q-{tenant}"
    first = guarded.key("default", *ALL_SCOPES, name="night watch")
    second = guarded.key(tenant, *ALL_SCOPES, name="day watch")
    with guarded.client(first) as one, guarded.client(second) as other:
        paused = one.post(f"/queues/{queue}/pause").json()
        assert paused["paused_by"] == "night watch"
        assert other.post(f"/queues/{queue}/pause").json() | {"updated_at": 0} == paused | {"updated_at": 0}
        assert one.post(f"/queues/{queue}/resume").json()["paused_by"] is None
        # Whose key it is, is kept beside the name and not shown in it.
        assert other.post(f"/queues/{queue}/pause").json()["paused_by"] == "day watch"
        listed = {each["name"]: each["paused_by"] for each in one.get("/queues").json()["queues"]}
        assert listed[queue] == "day watch"
        assert one.put(f"/queues/{queue}", json={"max_depth": 5}).json()["paused_by"] == "day watch"


def test_an_explanation_names_the_key_that_paused_the_queue_to_its_own_tenant_and_to_operators(
    guarded: Server, tenant: str
) -> None:
    queue = f"q-{tenant}"
    with guarded.client(guarded.key(f"{tenant}-ops", *ALL_SCOPES, name="secret agent")) as operator:
        operator.post(f"/queues/{queue}/pause")
        for whose, scopes, named in (
            (f"{tenant}-ops", ("jobs:write", "jobs:read"), True),
            (tenant, ("jobs:write", "jobs:read"), False),
            (tenant, ("jobs:write", "jobs:read", "admin:read"), True),
            ("default", ("jobs:write", "jobs:read"), False),
        ):
            with guarded.client(guarded.key(whose, *scopes)) as caller:
                job_id = caller.post("/jobs", json={"kind": "own", "queue": queue}).json()["job_id"]
                answer = caller.get(f"/jobs/{job_id}/explain")
                reason = answer.json()["because"][0]
                assert reason["code"] == "paused"
                assert (reason.get("by") == "secret agent", "agent" in answer.text) == (named, named)


def test_an_explanation_is_told_to_nobody_else(guarded: Server, tenant: str) -> None:
    with guarded.client(guarded.key(tenant)) as mine, guarded.client(guarded.key(f"{tenant}-b")) as other:
        job_id = mine.post("/jobs", json={"kind": "own"}).json()["job_id"]
        assert mine.get(f"/jobs/{job_id}/explain").status_code == 200
        refused = other.get(f"/jobs/{job_id}/explain")
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        missing = other.get("/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/explain")
        assert missing.json()["detail"] == refused.json()["detail"]
    with guarded.client(guarded.key(tenant, "jobs:write")) as writer:
        assert writer.get(f"/jobs/{job_id}/explain").status_code == 403
