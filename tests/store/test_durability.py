"""Only what may be done twice is committed without waiting for the disk; what is to be changed is changed."""

import re

from tests.store.test_first_plans import statements

# A lease on a delivery, and what became of a try: a crash that takes them has the delivery sent once more, with
# the same webhook-id. Whatever gives out a seq writes to other tables, too.
MAY_BE_FORGOTTEN = {"outbox", "deliveries"}
WRITES = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM|MERGE INTO)\s+(?!SET\b|SKIP\b|OF\b)(\w+)")


def test_no_statement_that_gives_out_a_seq_commits_before_it_is_on_disk() -> None:
    hasty = {name: set(WRITES.findall(text)) for name, text in statements() if "synchronous_commit" in text}
    assert hasty == {
        "notices.NOTIFY": set(),
        "outbox.CLAIM": {"outbox"},
        "outbox.RECORD": MAY_BE_FORGOTTEN,
    }


def test_no_statement_changes_rows_by_their_address() -> None:
    """After a wait for its lock that is the address of a version which the statement does not see: see outbox. What is
    only deleted is found again by the next one."""
    changes = re.compile(r"\bUPDATE\s+(?!SKIP\b|OF\b)\w+")
    assert [name for name, text in statements() if "ctid" in text and changes.search(text)] == []
