"""The way of new jobs from a caller to the intake: as many as the caller's key may have."""

from collections.abc import Awaitable, Callable

from app.api.services import Services
from app.errors import Unavailable
from app.identity.account import Account
from app.store.idempotency import Receipt, Submission


async def submit(
    services: Services,
    account: Account,
    submission: Submission,
    by: Callable[[Submission], Awaitable[Receipt]] | None = None,
) -> Receipt:
    """Raises RateLimited where the key has too many jobs that have not ended, and what the intake raises.

    `by` is another way into the database than the intake's own.
    """
    enter = by or services.intake.submit
    for job in submission.jobs:
        job.key_id = account.key_id
    if account.jobs is None:
        return await enter(submission)
    wanted = [job.id for job in submission.jobs]
    await services.job_limits.take(account, wanted)
    try:
        receipt = await enter(submission)
    except Unavailable:
        # Nobody knows whether they came in: who counts next does.
        raise
    except Exception:
        await services.job_limits.give_back(account, wanted)
        raise
    made = frozenset(receipt.job_ids)
    await services.job_limits.give_back(account, [each for each in wanted if each not in made])
    return receipt
