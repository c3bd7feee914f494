"""Calls to the outside: to whom callers name, behind one guard, and to targets, which operators set up."""

from app.outbound.client import GuardedClient
from app.outbound.errors import (
    AnswerCutError,
    ConnectionDropped,
    OutboundError,
    OutboundProtocolError,
    OutboundRefused,
    OutboundTimeout,
    OutboundUnreachable,
)
from app.outbound.guard import ANY_ADDRESS, AddressPolicy
from app.outbound.headers import METHODS, check_headers, token_problem
from app.outbound.response import OutboundResponse
from app.outbound.stream import OutboundStream
from app.outbound.urls import url_problem

__all__ = [
    "ANY_ADDRESS",
    "METHODS",
    "AddressPolicy",
    "AnswerCutError",
    "ConnectionDropped",
    "GuardedClient",
    "OutboundError",
    "OutboundProtocolError",
    "OutboundRefused",
    "OutboundResponse",
    "OutboundStream",
    "OutboundTimeout",
    "OutboundUnreachable",
    "check_headers",
    "token_problem",
    "url_problem",
]
