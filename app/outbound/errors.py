"""What can go wrong with a call to the outside, as four kinds that each ask for another reaction.

The reasons are written to be shown to callers: they never name an address that a host name resolved to,
so that the guard cannot be used to look into a private network's names.
"""


class OutboundError(Exception):
    """A call to the outside that brought no answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutboundRefused(OutboundError):
    """The guard said no; nothing was connected to, and trying again is pointless."""


class OutboundUnreachable(OutboundError):
    """No connection came about (name, connect, TLS); the peer saw no request."""


class OutboundTimeout(OutboundError):
    """Connected, but the deadline passed, or nothing came for too long."""


class OutboundProtocolError(OutboundError):
    """Connected, but what came back was no complete HTTP answer."""


class ConnectionDropped(OutboundProtocolError):
    """The peer closed before a single byte of the answer. A reused connection had most likely idled out."""

    # On a reused connection, and then on a fresh one.
    was_sent_twice = False


class AnswerCutError(OutboundProtocolError):
    """The connection ended in the middle of the answer."""
