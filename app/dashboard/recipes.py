"""The same job once more, for a terminal or a program: what the page gives to be copied."""

import json
import shlex
from typing import Any

import msgspec

from app.dialects import DEFAULT_DIALECT, dialect_named
from app.dialects.shapes import as_dict
from app.jobs.lanes import LLM_KINDS
from app.store.job import Job, JobSummary
from app.store.job_view import ViewedJob

# A longer payload is taken from a file: that alone, or in the body of a submission.
MAX_PAYLOAD = 16_000
PAYLOAD_FILE = "payload.json"
BODY_FILE = "job.json"


def _options(job: JobSummary) -> dict[str, Any]:
    """What the job was given beside its payload, as far as it is worth repeating."""
    options: dict[str, Any] = {}
    if job.queue != "default":
        options["queue"] = job.queue
    if job.priority:
        options["priority"] = job.priority
    if job.target:
        options["target"] = job.target
    if job.metadata:
        options["metadata"] = as_dict(msgspec.json.decode(job.metadata))
    return options


def _is_whole(job: ViewedJob) -> bool:
    return job.payload_bytes <= MAX_PAYLOAD


def _is_foreign(job: Job | ViewedJob) -> bool:
    """Whether it can only have come in by the surface of its dialect, where all else goes into headers."""
    return job.dialect != DEFAULT_DIALECT.name


def as_curl(job: ViewedJob, address: str, *, with_key: bool) -> str:
    path = "/jobs"
    headers = ['"Authorization: Bearer $FOREMAN_API_KEY"'] if with_key else []
    if _is_foreign(job):
        path = dialect_named(job.dialect).paths.get(job.kind, path)
        headers.append(f"X-Foreman-Queue:{job.queue}" if job.queue != "default" else "")
    lines = [f"curl -sS {shlex.quote(address + path)}", *(f"-H {each}" for each in headers if each)]
    lines.append(f"-d {shlex.quote(body(job))}" if _is_whole(job) else f"--data-binary @{BODY_FILE}")
    return " \\\n  ".join(lines)


def body(job: Job | ViewedJob) -> str:
    """What its surface takes, with the payload as it was written."""
    if _is_foreign(job):
        return job.payload
    options = _options(job)
    if job.kind not in LLM_KINDS:
        options = {"kind": job.kind, **options}
        return _joined(json.dumps(options, ensure_ascii=False), f'{{"payload": {job.payload}}}')
    if job.kind != "chat":
        options = {"kind": job.kind, **options}
    return _joined(job.payload.strip(), json.dumps(options, ensure_ascii=False))


def _joined(one: str, other: str) -> str:
    """Two objects as one, none of their members rewritten."""
    parts = [each[1:-1].strip() for each in (one, other)]
    return "{" + ", ".join(part for part in parts if part) + "}"


def as_python(job: ViewedJob, address: str, *, with_key: bool) -> str | None:
    """None for a job that came in as clients of another dialect send it: these send it again."""
    if _is_foreign(job):
        return None
    options = "".join(f", {name}={value!r}" for name, value in _options(job).items())
    imports, payload = "", "payload"
    given = f'with open("{PAYLOAD_FILE}") as file:\n    payload = json.load(file)'
    if _is_whole(job):
        given = f"payload = {msgspec.json.decode(job.payload)!r}"
    else:
        imports = "import json\n\n"
    key = "  # the key is in FOREMAN_API_KEY" if with_key else ""
    return (
        f"{imports}from foreman_client import Foreman\n\n{given}\n"
        f"with Foreman({address!r}) as foreman:{key}\n"
        f"    handle = foreman.submit({job.kind!r}, {payload}{options})\n"
        f"    print(handle.wait().result)\n"
    )
