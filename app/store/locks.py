"""The numbers of the advisory locks under which one replica at a time does something. Declared here and nowhere else.

Locks of one thing among many (a key, a queue's depth, a target's slots) are made from its name, where they are taken.
All of them end with their transaction: behind a PgBouncer a session's lock would be left to a stranger.
"""

MIGRATE = 7261348001
SWEEP = 7261348002
FOLD_TALLIES = 7261348003
REPAIR = 7261348004
PRUNE = 7261348005
RENEW_PARTITIONS = 7261348006


def try_lock(number: int) -> str:
    """A statement that says whether this transaction may; whoever else is at it is not waited for."""
    return f"SELECT pg_try_advisory_xact_lock({number})"
