"""What a key may be allowed to do."""

from enum import StrEnum


class Scope(StrEnum):
    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    JOBS_WORK = "jobs:work"
    # Over all tenants: settings, queues, targets, and the keys themselves.
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"


ALL_SCOPES = tuple(Scope)
# What a key may do of which nothing else was said: everything about its tenant's own jobs.
USUAL_SCOPES = (Scope.JOBS_WRITE, Scope.JOBS_READ, Scope.JOBS_WORK)
