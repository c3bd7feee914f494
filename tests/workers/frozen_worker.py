"""A worker without a library: claims, says so, waits to be told, then completes all it claimed.

Run as a process, so that it can be frozen in between.
"""

import json
import sys
from collections import Counter

import httpx


def main(url: str, kind: str, lease_seconds: float) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:
        for line in sys.stdin:
            wanted = {
                "worker": "frozen",
                "kinds": [kind],
                "limit": int(line),
                "lease_seconds": lease_seconds,
            }
            jobs = client.post("/claims", json=wanted).json()["jobs"]
            print(len(jobs), flush=True)  # noqa: T201 - this is how it talks to the test
            sys.stdin.readline()
            answers: Counter[str] = Counter()
            for job in jobs:
                body = {"lease_token": job["lease_token"], "result": "frozen"}
                answer = client.post(f"/jobs/{job['job_id']}/complete", json=body)
                answers[f"{answer.status_code} {answer.json().get('code')}"] += 1
            print(json.dumps(answers), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
