"""What can go wrong with a call to the outside, as four kinds that each ask for another reaction.

    OutboundError
    ├── OutboundRefused        the guard said no; nothing was connected to, trying again is pointless
    ├── OutboundUnreachable    no connection came about (name, connect, TLS); the peer saw no request
    ├── OutboundTimeout        connected, but the deadline passed, or nothing came for too long
    └── OutboundProtocolError  connected, but what came back was no complete HTTP answer
        ├── ConnectionDropped  not a single byte came back
        └── AnswerCutError     it broke off in the middle

The reasons are written to be shown to callers: they never name an address that a host name resolved to,
so that the guard cannot be used to look into a private network's names.
"""


class OutboundError(Exception):
    """A call to the outside that brought no answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutboundRefused(OutboundError):
    """The guard refused the call before any connection was opened."""


class OutboundUnreachable(OutboundError):
    """No connection to the receiver could be made."""


class OutboundTimeout(OutboundError):
    """The deadline passed while the answer was awaited or read, or nothing came for too long."""


class OutboundProtocolError(OutboundError):
    """The receiver's answer was cut off or was not HTTP."""


class ConnectionDropped(OutboundProtocolError):
    """The peer closed before a single byte of the answer. A reused connection had most likely idled out."""


class AnswerCutError(OutboundProtocolError):
    """The connection ended in the middle of the answer."""
