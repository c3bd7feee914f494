"""Everything a request handler may need, put together once by app.foreman."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from app.api.open_streams import OpenStreams
from app.artifacts.store import ArtifactStore
from app.config import Settings
from app.engine.claimers import Claimers
from app.engine.event_writer import EventWriter
from app.engine.explain import Explainer
from app.engine.intake import Intake
from app.engine.leases import Leases
from app.engine.queues import Queues
from app.engine.remote_claims import RemoteClaims
from app.engine.settler import Settler
from app.engine.worker_directory import WorkerDirectory
from app.events.hub import Hub
from app.events.live_output import LiveOutputs
from app.events.shared_feed import SharedFeed
from app.identity.account import Account
from app.identity.authenticator import Authenticator
from app.identity.job_limits import JobLimits
from app.store.database import Database
from app.targets.registry import Registry
from app.webhooks.deliverer import Deliverer


@dataclass(slots=True)
class Services:
    settings: Settings
    database: Database
    hub: Hub
    live: LiveOutputs
    intake: Intake
    settler: Settler
    event_writer: EventWriter
    leases: Leases
    remote_claims: RemoteClaims
    worker_directory: WorkerDirectory
    newest_revision: str
    streams: OpenStreams
    shared_feed: SharedFeed
    artifacts: ArtifactStore
    queues: Queues
    targets: Registry
    claimers: Claimers
    explainer: Explainer
    job_limits: JobLimits
    # Who brings the gauges up to date that are looked up when somebody reads the metrics.
    measures: Sequence[Callable[[], Awaitable[None]]]
    deliverer: Deliverer
    # None where there is no authentication.
    authenticator: Authenticator | None


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


def account_of(request: Request) -> Account:
    """Who the edge let in."""
    return cast(Account, request.scope["state"]["account"])


def request_id_of(request: Request) -> str:
    """The caller's own, or one that the edge gave it."""
    return cast(str, request.scope["state"]["request_id"])


def tenant_of(request: Request) -> str:
    """As whom the edge let it in."""
    return cast(str, request.scope["state"]["tenant"])
