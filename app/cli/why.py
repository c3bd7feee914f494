"""why: a job explains itself."""

from datetime import UTC, datetime

from app.cli.jobs import JobId
from app.cli.session import Commands, Session
from app.cli.times import ago

commands = Commands()


@commands.remote("why")
def why(session: Session, job_id: JobId) -> None:
    """Why a job waits, what it is at, or how it went; what decides comes first."""
    with session.route_of_job(job_id, "explain"):
        found = session.foreman.explain(job_id)
    if session.out.as_json:
        session.out.json(found.raw)
        return
    session.out.text(found.headline)
    for reason in found.because:
        session.out.text(f"  {reason.code}: {reason.message}")
    if found.next_at is not None and found.next_at > datetime.now(UTC):
        session.out.text(f"  next: {ago(found.next_at)}")
