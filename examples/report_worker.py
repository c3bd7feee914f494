"""A worker that writes reports: it tells how far it is, can be cancelled, and asks for approval on the way.

python examples/report_worker.py
python examples/request_report.py "Third quarter"
"""

import asyncio
import logging
from dataclasses import asdict, dataclass
from typing import Any

from foreman_client import ActiveJob, Fail, Worker

SECTIONS = ("Summary", "Figures", "Outlook")

worker = Worker(concurrency=4)


@dataclass
class Section:
    heading: str
    text: str


@worker.task("generate_report", retry_on=(OSError,), max_duration=600)
async def generate_report(payload: dict[str, Any], job: ActiveJob) -> dict[str, Any]:
    """Payload: `title`; `seconds_per_section` to watch it work; `needs_approval` to be asked in between."""
    title = payload.get("title")
    if not title:
        raise Fail("no_title", "a report needs a title")
    sections = []
    for number, heading in enumerate(SECTIONS):
        job.progress(number, len(SECTIONS), step=heading, message=f"writing {heading}")
        sections.append(await write_section(title, heading, payload.get("seconds_per_section", 0.5)))
        job.log(f"{heading} is written")
    if payload.get("needs_approval"):
        await approval(job)
    job.progress(len(SECTIONS), len(SECTIONS), message="done")
    return {"title": title, "sections": [asdict(section) for section in sections]}


async def write_section(title: str, heading: str, seconds: float) -> Section:
    # A cancelled job, or a lost lease, raises CancelledError right here.
    await asyncio.sleep(seconds)
    return Section(heading, f"{heading} of {title}.")


async def approval(job: ActiveJob) -> None:
    job.progress(message="waiting for approval")
    answer = await job.recv_event(["approve", "reject"], timeout=300)
    if answer is None:
        raise Fail("not_approved", "nobody approved the report in time")
    if answer.type == "reject":
        raise Fail("rejected", f"rejected: {(answer.payload or {}).get('why', 'no reason given')}")
    job.log(f"approved by {(answer.payload or {}).get('by', 'somebody')}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it has a line for every request
    worker.run()
