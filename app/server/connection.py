"""A connection as the protocol sees it: how answers leave, how it ends, when it is read."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

# How long, and for how much, an end waits for a client that is still sending: some read nothing before they
# have sent all of it, which may take its time. Who is silent meanwhile has said all there was.
LINGER_SECONDS = 30.0
LINGER_IDLE_SECONDS = 5.0
LINGER_BYTES = 256 * 1024 * 1024
# How often it is looked whether an answer has left by TLS, and how long its last bytes have to.
LOOK_SECONDS = 0.25
LAST_BYTES_SECONDS = 30.0
BEGINS_AN_ANSWER = b"HTTP/1.1 "


class Connection:
    """The transport, but the head of an answer leaves together with the first of its body.

    uvloop sends at once what is written: a short answer would be two system calls and wake its reader twice.
    It ends gently: what a client was told while it still spoke is not lost. TLS has no half of an end: its
    transport says that it ends, and throws away what comes until the client says so too. Many never do, and
    only one that is still sending is waited for.
    """

    __slots__ = (
        "_flushing",
        "_head",
        "_heard",
        "_is_tls",
        "_lingering",
        "_lingers_until",
        "_loop",
        "_room",
        "_stop_listening",
        "_transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        stop_listening: Callable[[], bool],
    ) -> None:
        """`stop_listening`: the connection ends; whether the client may still be speaking."""
        self._transport = transport
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._loop = loop
        self._stop_listening = stop_listening
        self._head = b""
        self._flushing: asyncio.Handle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._lingers_until = 0.0
        # Whether something came that was thrown away, since that was last asked.
        self._heard = False
        self._room = LINGER_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
            data, self._head = self._head + data, b""
        elif data.startswith(BEGINS_AN_ANSWER):
            # Where nothing follows in this turn of the loop, it leaves by itself.
            self._head = data
            self._flushing = self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def write_whole(self, answer: bytes) -> None:
        """An answer from its first byte to its last; nothing of another one can be held back."""
        self._transport.write(answer)

    def is_closing(self) -> bool:
        return self._lingering is not None or self._transport.is_closing()

    def close(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flush()
        if self.is_closing():
            return
        if self._is_tls:
            speaks = self._stop_listening()
            self._transport.close()
            if speaks:
                # What comes is thrown away by the transport, and not heard of.
                self._lingering = self._loop.call_later(LINGER_IDLE_SECONDS, self._leave_tls)
            else:
                self._leave_tls()
        elif self._transport.can_write_eof() and self._stop_listening():
            self._transport.write_eof()
            self._lingers_until = self._loop.time() + LINGER_SECONDS
            self._linger()
        else:
            self._transport.close()

    def throw_away(self, size: int) -> None:
        """So much more came that nobody listens to."""
        if self._lingering is not None:
            self._heard = True
            self._room -= size
            if self._room < 0:
                self._transport.close()

    def _linger(self) -> None:
        left = self._lingers_until - self._loop.time()
        self._lingering = self._loop.call_later(min(left, LINGER_IDLE_SECONDS), self._look_at_lingering)

    def _look_at_lingering(self) -> None:
        if self._heard and self._loop.time() < self._lingers_until:
            self._heard = False
            self._linger()
        else:
            self._transport.close()

    def end(self) -> None:
        """Wait no longer for a client that was told already."""
        if self._lingering is not None:
            self._lingering.cancel()
            if self._is_tls:
                self._leave_tls()
            else:
                self._transport.close()

    def lost(self) -> None:
        """There is nothing left to end."""
        if self._lingering is not None:
            self._lingering.cancel()

    def _leave_tls(self) -> None:
        """Wait no longer for the client's word, as if it had ended; what is on its way to it still leaves."""
        if self._transport.get_write_buffer_size():
            # Its reader is slow. For how long it may be, the transport knows (`ssl_shutdown_timeout`).
            self._lingering = self._loop.call_later(LOOK_SECONDS, self._leave_tls)
            return
        self._lingering = self._loop.call_later(LAST_BYTES_SECONDS, self._transport.abort)
        descriptor = self._transport.get_extra_info("socket").fileno()
        # It has left itself, perhaps.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as ours:
            ours.shutdown(socket.SHUT_RD)

    def _flush(self) -> None:
        self._flushing = None
        data, self._head = self._head, b""
        self._transport.write(data)


class Flow(FlowControl):
    """Reading is also held back for reasons of ours, which no request that waits for its body knows of."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._held_back = False

    def hold_back(self) -> None:
        self._held_back = True
        self.pause_reading()

    def let_go(self) -> None:
        if self._held_back:
            self._held_back = False
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._held_back:
            super().resume_reading()
