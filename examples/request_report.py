"""Asks report_worker.py for a report, shows its progress, approves it, and prints it.

python examples/request_report.py "Third quarter"
"""

import sys

from foreman_client import Event, Foreman, JobHandle, JobUnsuccessful


def show(handle: JobHandle, event: Event) -> None:
    if event.type == "progress":
        progress = event.data
        sys.stderr.write(f"{progress.get('fraction') or 0:4.0%} {progress.get('message')}\n")
        if progress.get("message") == "waiting for approval":
            handle.send_event("approve", {"by": "request_report.py"})
    elif event.type == "log":
        sys.stderr.write(f"     {event.data['message']}\n")


def main(title: str) -> int:
    with Foreman() as foreman:
        handle = foreman.submit("generate_report", {"title": title, "needs_approval": True})
        for event in handle.events():
            show(handle, event)
        try:
            report = handle.result()
        except JobUnsuccessful as error:
            sys.stderr.write(f"{error}\n")
            return 1
    for section in report["sections"]:
        sys.stdout.write(f"{section['heading']}\n  {section['text']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "Third quarter"))
