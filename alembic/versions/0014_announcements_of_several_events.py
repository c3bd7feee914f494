"""An announcement names each job once, however many events of it one statement wrote."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute("ALTER TABLE announcements ADD COLUMN events smallint NOT NULL DEFAULT 1")


# Whoever reads the feed goes on at the same position: each event has its own entry again.
EACH_EVENT = """
UPDATE announcements AS a SET job_ids = each.job_ids, seqs = each.seqs FROM (
    SELECT xid, id, at, array_agg(job_id ORDER BY nth, step) AS job_ids,
           array_agg(last - events + step ORDER BY nth, step) AS seqs
    FROM announcements CROSS JOIN unnest(job_ids, seqs) WITH ORDINALITY AS moved (job_id, last, nth)
    CROSS JOIN generate_series(1, events) AS step
    WHERE events > 1 GROUP BY xid, id, at
) AS each WHERE (a.xid, a.id, a.at) = (each.xid, each.id, each.at)
"""


def downgrade() -> None:
    op.execute(EACH_EVENT)
    op.execute("ALTER TABLE announcements DROP COLUMN events")
