"""Calls to the outside on behalf of callers, behind one guard.

Targets are configured by operators and do not go through here.
"""

from app.outbound.client import GuardedClient
from app.outbound.errors import (
    OutboundError,
    OutboundProtocolError,
    OutboundRefused,
    OutboundTimeout,
    OutboundUnreachable,
)
from app.outbound.guard import AddressPolicy
from app.outbound.headers import METHODS, check_headers
from app.outbound.resolve import Resolver
from app.outbound.response import OutboundResponse

__all__ = [
    "METHODS",
    "AddressPolicy",
    "GuardedClient",
    "OutboundError",
    "OutboundProtocolError",
    "OutboundRefused",
    "OutboundResponse",
    "OutboundTimeout",
    "OutboundUnreachable",
    "Resolver",
    "check_headers",
]
