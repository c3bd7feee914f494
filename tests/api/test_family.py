"""GET /jobs/{id}/family: the jobs that have to do with one."""

from collections.abc import Callable
from typing import Any

import httpx

from app.jobs.ids import new_id
from tests.api.conftest import Submit, problem_of

LATER = {"delay_seconds": 3600}


def of(client: httpx.Client, job_id: str) -> dict[str, Any]:
    answer = client.get(f"/jobs/{job_id}/family")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ids(relatives: dict[str, Any]) -> list[str]:
    return [each["job_id"] for each in relatives["jobs"]]


def test_a_job_by_itself_has_none(client: httpx.Client, submit: Submit) -> None:
    assert of(client, submit(**LATER)) == {
        "parent": None,
        "children": {"jobs": [], "total": 0, "states": {}},
        "depends_on": {"jobs": [], "total": 0},
        "dependents": {"jobs": [], "total": 0},
    }


def test_parent_and_children_know_each_other(client: httpx.Client, submit: Submit) -> None:
    parent = submit(**LATER)
    children = [submit(parent_id=parent, **LATER) for _ in range(23)]
    found = of(client, parent)["children"]
    assert ids(found) == children[:20]
    assert found["total"] == 23
    assert found["states"] == {"queued": 23}
    assert of(client, children[0])["parent"] == {
        "job_id": parent, "state": "queued", "kind": "noop", "model": None
    }  # fmt: skip


def test_what_is_waited_for_is_known_even_when_it_has_ended_or_gone(
    client: httpx.Client, submit: Submit, read: Callable[..., dict[str, Any]]
) -> None:
    first, second = submit(), submit(**LATER)
    waiting = submit(depends_on=[first, second])
    assert ids(of(client, second)["dependents"]) == [waiting]
    read(first, wait=60)
    assert client.delete(f"/jobs/{first}").status_code == 204
    found = of(client, waiting)["depends_on"]
    assert [(each["job_id"], each["state"]) for each in found["jobs"]] == [(first, None), (second, "queued")]
    assert client.post(f"/jobs/{second}/cancel").status_code == 200
    read(waiting, wait=60)
    assert ids(of(client, waiting)["depends_on"]) == [first, second]
    assert ids(of(client, second)["dependents"]) == []


def test_an_unknown_job_has_no_family(client: httpx.Client) -> None:
    problem_of(client.get(f"/jobs/{new_id()}/family"), 404, "not_found")
    problem_of(client.get("/jobs/x/family"), 404, "not_found")
