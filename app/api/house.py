"""Everything a request handler may need, put together once by app.foreman."""

from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from app.api.lines import Lines
from app.artifacts.store import ArtifactStore
from app.config import Settings
from app.engine.claimdesk import ClaimDesk
from app.engine.claimers import Claimers
from app.engine.intake import Intake
from app.engine.leases import Leases
from app.engine.presence import PresenceBook
from app.engine.queues import Queues
from app.engine.scribe import Scribe
from app.engine.settler import Settler
from app.events.bulletin import Bulletin
from app.events.feed import Feed
from app.events.hub import Hub
from app.jobs.lanes import DEFAULT_TENANT
from app.store.database import Database
from app.targets.registry import Registry
from app.webhooks.dispatcher import Dispatcher


@dataclass(slots=True)
class House:
    settings: Settings
    database: Database
    hub: Hub
    feed: Feed
    intake: Intake
    settler: Settler
    scribe: Scribe
    leases: Leases
    claim_desk: ClaimDesk
    presence: PresenceBook
    newest_revision: str
    lines: Lines
    bulletin: Bulletin
    artifacts: ArtifactStore
    queues: Queues
    dispatcher: Dispatcher
    targets: Registry
    claimers: Claimers


def house_of(request: Request) -> House:
    return cast(House, request.app.state.house)


def tenant_of(request: Request) -> str:  # noqa: ARG001 - identity comes from the request once there are keys
    return DEFAULT_TENANT
