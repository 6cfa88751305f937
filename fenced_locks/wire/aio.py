"""
Script calls of one asyncio pool: one connection per event loop, beside the pool, for any number of tasks.

What tasks ask for in one turn of the loop is sent in one piece. Replies come in the order of the requests, and so does
what is sent behind a request to undo it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any
from weakref import finalize

from ..loops import close_everywhere, of_this_loop
from .aio_line import Line
from .aio_listening import AsyncBlockedListener, AsyncListeners
from .aio_own import AsyncOwnConnections
from .base import Undo
from .channels import maker
from .clients import AsyncClientWire, call_in_one_turn
from .lines import server_of
from .own_reader import AsyncOwnReaderWire, has_own_reader

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from ..scripts import Script
    from .base import AsyncWire


class AsyncLines:
    """The connections for the scripts of one pool, in whatever loops; closed with the pool object, or with the loop."""

    hides_retries = False

    def __init__(self, pool: Any) -> None:
        self.server = server_of(pool)
        self._make, self._limit = maker(pool), int(pool.max_connections)
        finalize(pool, close_everywhere, self).atexit = False

    async def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        return await of_this_loop(self, self._settle).line.call(script, keys, args, timeout, undo)

    async def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        return await call_in_one_turn(self, script, calls, timeout)

    async def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> tuple[AsyncBlockedListener, Any] | None:
        listeners = of_this_loop(self, self._settle).listeners
        ends = listeners.now() + timeout
        channel = await listeners.borrow(timeout)
        if channel is None:
            return None
        listener = AsyncBlockedListener(listeners, channel)
        return listener, await listener.start(script, keys, args, ends - listeners.now(), wake, seconds)

    @property
    def connections(self) -> AsyncOwnConnections:
        return of_this_loop(self, self._settle).connections

    def _settle(self, loop: asyncio.AbstractEventLoop) -> _Branch:
        return _Branch(loop, self._make, self._limit)


class _Branch:
    """What one pool has in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any], limit: int) -> None:
        self.line = Line(loop, make)
        self.listeners = AsyncListeners(loop, make)
        self.connections = AsyncOwnConnections(loop, make, limit)

    async def close(self) -> None:
        await self.connections.close()
        await self.listeners.close()
        await self.line.close()

    def abandon(self) -> None:
        self.listeners.abandon()


def async_wire_for(client: Redis) -> AsyncWire:
    """
    Return how scripts of this asyncio client reach its server; one set of connections per pool and event loop.

    Raises:
        TypeError: A client that blocks, or no client.
    """
    if not iscoroutinefunction(getattr(client, "execute_command", None)):
        raise TypeError(f"an async lock needs a client of redis.asyncio, not {client!r}")
    pool: Any = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class"):
        return AsyncClientWire(client)
    # Kept on the pool, to be collected with it.
    wire: AsyncWire | None = vars(pool).get("_fenced_locks_async_wire")
    return wire or vars(pool).setdefault("_fenced_locks_async_wire", _wire_of(pool))


def _wire_of(pool: Any) -> AsyncWire:
    return AsyncOwnReaderWire(pool) if has_own_reader(pool) else AsyncLines(pool)
