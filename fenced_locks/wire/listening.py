"""
Connections on which waiters block: outside the pool's budget, and few.

A blocking pop on a connection of the pool could use the pool up, so that the holder cannot release; and its reply is
waited for here by the socket's own time-out, not by the client's ``socket_timeout`` and retries.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import clock
from .base import UNREACHABLE, Claim, ReplyLost
from .budget import budget
from .connecting import (
    abandon,
    exchange,
    named,
    pack,
    pack_evalsha,
    pack_rest,
    read_reply,
    ready,
    was_broken,
)

if TYPE_CHECKING:
    from ..scripts import Script

# How long to wait for a server's word that it has closed the connection, in seconds.
_CLOSING_SECONDS = 0.2


class Listeners:
    """The connections for waiting to one server, for all pools that connect to it in the same way."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self._idle: deque[Any] = deque()
        finalize(self, _close_all, self._idle).atexit = False
        budget.share(self)

    def borrow(self) -> Any:
        """Return a connection that nobody uses; None if there are too many."""
        with suppress(IndexError):
            return self._idle.pop()
        if not budget.take():
            return None
        try:
            return self.make()
        except BaseException:
            # From a signal handler, say; making one takes a while.
            budget.free()
            raise

    def give_back(self, connection: Any) -> None:
        """Keep the connection for the next waiter."""
        self._idle.append(connection)

    def discard(self, connection: Any) -> None:
        """Close the connection."""
        try:
            connection.disconnect()
        finally:
            budget.free()

    def close_one(self) -> bool:
        """Close the connection that has been idle longest; whether there was one."""
        try:
            connection = self._idle.popleft()
        except IndexError:
            return False
        connection.disconnect()
        return True

    def forget(self) -> None:
        """Forget every connection, as a forked child must."""
        self._idle.clear()


class BlockedListener:
    """One waiter's connection; see ``Listener``."""

    def __init__(self, listeners: Listeners, connection: Any) -> None:
        self._listeners, self._connection = listeners, connection
        self._over = False
        self._claim: Claim | None = None
        self.claimed_at: float | None = None

    def start(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> Any:
        """Run the script and block; return its reply, None if the server does not know it."""
        ends = time.monotonic() + timeout
        try:
            ready(self._connection, ends)
            # In one piece: between two the ticket of this registration could find nobody.
            command = pack_evalsha(script, keys, args) + pack(b"BLPOP", wake, b"%.3f" % seconds)
            reply = exchange(self._connection, command, ends)
        except BaseException:
            self._discard()
            raise
        if isinstance(reply, NoScriptError):
            return None
        if isinstance(reply, Exception):
            self._discard()
            raise reply
        return reply

    def hear(self, timeout: float, claim: Claim | None = None) -> bytes | None:
        # Packed while there is nothing else to do.
        begun = None if claim is None else pack_evalsha(claim.script, claim.keys, claim.args, missing=1)
        try:
            ticket = self._read(timeout)
        except TimeoutError:
            return None
        except (ReplyLost, ResponseError, *UNREACHABLE) as error:
            # Not where we are interrupted: who hangs up then still gets a ticket that has come.
            self._discard()
            if was_broken(error):
                raise ReplyLost from named(error)
            raise
        if begun is not None:
            self._claim, self.claimed_at = claim, clock.monotonic()
            # That it could not be sent is found out when the answer is read.
            with suppress(OSError):
                self._connection._sock.sendall(begun + pack_rest(ticket))
        else:
            self._keep_connection()
        return ticket

    def answer(self, timeout: float) -> Any:
        assert self._claim is not None
        try:
            reply = exchange(self._connection, b"", time.monotonic() + timeout, self._claim.undo)
        except BaseException:
            self._discard()
            raise
        self._keep_connection()
        if isinstance(reply, NoScriptError):
            return None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _keep_connection(self) -> None:
        self._over = True
        self._listeners.give_back(self._connection)

    def hang_up(self) -> bytes | None:
        if self._over:
            return None
        if self._claim is not None:
            self._discard()
            return None
        try:
            return self._read(_CLOSING_SECONDS if self._close_our_side() else 0)
        except (ResponseError, ReplyLost, *UNREACHABLE):
            return None
        finally:
            self._discard()

    def _close_our_side(self) -> bool:
        """Have the server close the connection, so that what it sent before is all there is; whether that can be."""
        sock = self._connection._sock
        # One with TLS could not read any more.
        plain = type(sock) is socket.socket
        if plain:
            sock.shutdown(socket.SHUT_WR)
        return plain

    def _read(self, timeout: float) -> bytes:
        self._connection._sock.settimeout(max(0.001, timeout))
        popped = read_reply(self._connection)
        if popped is None:
            raise ReplyLost from RedisTimeoutError("the server has stopped to wait for a ticket")
        return bytes(popped[1])

    def __del__(self) -> None:
        # Lost by an interruption that came at the wrong moment; a place must not be.
        with suppress(Exception):
            self._discard()

    def _discard(self) -> None:
        if not self._over:
            self._over = True
            if self._claim is not None:
                abandon(self._connection, self._claim.undo)
            self._listeners.discard(self._connection)


_listeners: WeakValueDictionary[Hashable, Listeners] = WeakValueDictionary()


def listeners_of(identity: Hashable, make: Callable[[], Any]) -> Listeners:
    """Return the connections for waiting of all pools that are ``identity``."""
    known = _listeners.get(identity)
    return known if known is not None else _listeners.setdefault(identity, Listeners(make))


def _close_all(connections: deque[Any]) -> None:
    while connections:
        connections.pop().disconnect()
        budget.free()
