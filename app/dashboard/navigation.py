"""The pages there are, and who may see each."""

from dataclasses import dataclass

from app.identity.account import Account
from app.identity.scopes import Scope


@dataclass(frozen=True, slots=True)
class Entry:
    section: str
    label: str
    address: str
    needs: Scope
    # `g` and then this.
    key: str


PAGES = (
    Entry("", "Overview", "/ui", Scope.ADMIN_READ, "o"),
    Entry("jobs", "Jobs", "/ui/jobs", Scope.JOBS_READ, "j"),
    Entry("dead-letters", "Dead letters", "/ui/dead-letters", Scope.ADMIN_READ, "d"),
    Entry("queues", "Queues", "/ui/queues", Scope.ADMIN_READ, "q"),
    Entry("targets", "Targets", "/ui/targets", Scope.ADMIN_READ, "t"),
    Entry("workers", "Workers", "/ui/workers", Scope.ADMIN_READ, "w"),
    Entry("schedules", "Schedules", "/ui/schedules", Scope.ADMIN_READ, "s"),
    Entry("webhooks", "Webhooks", "/ui/webhooks", Scope.ADMIN_READ, "h"),
    Entry("keys", "API keys", "/ui/keys", Scope.ADMIN_READ, "k"),
    Entry("usage", "Usage", "/ui/usage", Scope.ADMIN_READ, "u"),
)


def entries(account: Account) -> list[Entry]:
    return [each for each in PAGES if each.needs in account.scopes]


def first_page(account: Account) -> str:
    """Where somebody comes who named no page: every key may read the reference."""
    seen = entries(account)
    return seen[0].address if seen else "/docs"
