"""A job goes in over HTTP and comes out done."""

import httpx

from tests.conftest import Server


def test_a_chat_job_for_echo_reaches_done_with_its_completion(server: Server) -> None:
    submitted = httpx.post(
        f"{server.url}/jobs",
        json={"model": "echo", "messages": [{"role": "user", "content": "one two three"}]},
    )
    assert submitted.status_code == 202
    job_id = submitted.json()["job_id"]
    assert submitted.headers["location"] == f"/jobs/{job_id}"
    job = httpx.get(f"{server.url}/jobs/{job_id}", params={"wait": 10}).json()
    assert job["state"] == "done"
    assert job["seq"] == 4
    assert job["result"]["message"] == {"role": "assistant", "content": "one two three"}
    assert [artifact["name"] for artifact in job["artifacts"]] == ["completion"]
