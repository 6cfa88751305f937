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

from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..loops import close_everywhere, of_this_loop
from .aio_line import Line
from .aio_listening import AsyncBlockedListener, AsyncListeners
from .base import REFUSED_FOR_GOOD, UNREACHABLE, NotSent, ReplyLost, Undo
from .channels import maker
from .lines import server_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from ..scripts import Script
    from .base import AsyncWire

# How long a request whose caller is cancelled has to be answered, in seconds.
_ENDING_SECONDS = 0.5


class AsyncLines:
    """The connections for the scripts of one pool, in whatever loops; closed with the pool object, or with the loop."""

    hides_retries = False

    def __init__(self, pool: Any) -> None:
        self.server = server_of(pool)
        self._make = maker(pool)
        finalize(pool, close_everywhere, self).atexit = False

    async def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        return await of_this_loop(self, self._settle).line.call(script, keys, args, timeout, undo)

    async def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        return await _call_all(self, script, calls, timeout)

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

    def _settle(self, loop: asyncio.AbstractEventLoop) -> _Branch:
        return _Branch(loop, self._make)


class _Branch:
    """What one pool has in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> None:
        self.line = Line(loop, make)
        self.listeners = AsyncListeners(loop, make)

    async def close(self) -> None:
        await self.listeners.close()
        await self.line.close()

    def abandon(self) -> None:
        self.listeners.abandon()


class AsyncClientWire:
    """Through ``execute_command``, for clients without one pool, such as a cluster's; their waiters only probe."""

    hides_retries = True

    def __init__(self, client: Any) -> None:
        self.server: tuple[object, ...] = (id(client),)
        self._client = client

    async def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        task = asyncio.ensure_future(self._call(script, keys, args))
        # Nobody else may be there to see its error.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(task), timeout)
        except asyncio.TimeoutError:
            raise ReplyLost from RedisTimeoutError(f"no reply within {timeout:.3f} s")
        except asyncio.CancelledError:
            # What is sent to undo it must not overtake it.
            await asyncio.wait({task}, timeout=_ENDING_SECONDS)
            task.cancel()
            raise

    async def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        return await _call_all(self, script, calls, timeout)

    async def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> None:
        return None

    async def _call(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        try:
            try:
                return await self._run(b"EVALSHA", script.sha, keys, args)
            except NoScriptError:
                return await self._run(b"EVAL", script.text, keys, args)
        except REFUSED_FOR_GOOD:
            raise
        except UNREACHABLE as error:
            raise ReplyLost from error

    async def _run(self, command: bytes, script: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        return await self._client.execute_command(command.decode(), script, len(keys), *keys, *args, NEVER_DECODE=True)


async def _call_all(
    wire: AsyncWire, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
) -> list[Any]:
    # In one turn of the loop, so they travel as one pipeline.
    sent = [wire.call(script, keys, args, timeout) for keys, args in calls]
    replies = await asyncio.gather(*sent, return_exceptions=True)
    for reply in replies:
        if isinstance(reply, (NotSent, ReplyLost, asyncio.CancelledError)):
            raise reply
    return replies


def async_wire_for(client: Redis) -> AsyncWire:
    """
    Return how scripts of this asyncio client reach its server; one set of connections per pool and event loop.

    Raises:
        TypeError: A client that blocks.
    """
    if not iscoroutinefunction(client.execute_command):
        raise TypeError(f"an async lock needs a client of redis.asyncio, not {client!r}")
    pool: Any = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class"):
        return AsyncClientWire(client)
    # Kept on the pool, to be collected with it.
    lines: AsyncLines | None = vars(pool).get("_fenced_locks_async_lines")
    return lines or vars(pool).setdefault("_fenced_locks_async_lines", AsyncLines(pool))
