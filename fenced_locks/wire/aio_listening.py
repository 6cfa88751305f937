"""Connections on which tasks block, in one event loop; counted with those of threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .base import ReplyLost
from .budget import budget
from .channels import Channel, caused, open_channel, understood
from .connecting import named, pack, pack_evalsha, was_broken

if TYPE_CHECKING:
    from ..scripts import Script

# How long to wait for a server's word that it has closed the connection, in seconds.
_CLOSING_SECONDS = 0.2
# The same with TLS, where only what is there already can be had.
_LOOKING_SECONDS = 0.001


class AsyncListeners:
    """The connections for waiting of one pool in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> None:
        self._loop, self._make = loop, make
        self._idle: deque[Channel] = deque()
        self._open: set[Channel] = set()
        self._gone: deque[Channel] = deque()
        self._closed = False
        budget.share(self)

    def now(self) -> float:
        return self._loop.time()

    async def borrow(self, seconds: float) -> Channel | None:
        """
        Return a channel that nobody uses; None if there are too many.

        Raises:
            As ``open_channel``.
        """
        while self._idle:
            channel = self._idle.pop()
            if channel.is_open:
                return channel
            self._count_out(channel)
        if not budget.take():
            return None
        try:
            channel = await open_channel(self._make, seconds)
        except BaseException:
            budget.free()
            raise
        self._open.add(channel)
        return channel

    def give_back(self, channel: Channel) -> None:
        """Keep the channel for the next waiter."""
        if self._closed:
            self.discard(channel)
        else:
            self._idle.append(channel)

    def discard(self, channel: Channel) -> None:
        """Close the channel; by any thread, as who collects garbage is."""
        if asyncio._get_running_loop() is self._loop:
            channel.break_off(RedisTimeoutError("nobody waits any more"))
        else:
            self._close_soon(channel)
        self._count_out(channel)

    def close_one(self) -> bool:
        """Close the connection that has been idle longest; whether there was one."""
        try:
            channel = self._idle.popleft()
        except IndexError:
            return False
        self._open.discard(channel)
        self._close_soon(channel)
        return True

    def forget(self) -> None:
        """Forget every connection, as a forked child must; kept, since collecting one reaches for the parent's loop."""
        self._idle, self._gone = deque(), self._idle

    async def close(self) -> None:
        """Close every connection, and those that are used later when they are given back."""
        self._closed = True
        self._idle.clear()
        for channel in list(self._open):
            await channel.close()
            self._count_out(channel)

    def abandon(self) -> None:
        """Count every connection out: the loop is closed, and they with it."""
        for channel in list(self._open):
            self._count_out(channel)

    def _close_soon(self, channel: Channel) -> None:
        # Unless the loop is closed, and with it the connection.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(channel.break_off, RedisTimeoutError("nobody waits any more"))

    def _count_out(self, channel: Channel) -> None:
        if channel in self._open:
            self._open.discard(channel)
            budget.free()


class AsyncBlockedListener:
    """One waiter's connection; see ``AsyncListener``."""

    def __init__(self, listeners: AsyncListeners, channel: Channel) -> None:
        self._listeners, self._channel = listeners, channel
        self._joined, self._popped = _Awaited(), _Awaited()
        self._heard = self._dropped = False
        # Claims are left to the caller: it is in the same turn of the loop.
        self.claimed_at: float | None = None

    async def start(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> Any:
        """Run the script and block; return its reply, None if the server does not know it."""
        # In one piece: between two the ticket of this registration could find nobody.
        command = pack_evalsha(script, keys, args) + pack(b"BLPOP", wake, b"%.3f" % seconds)
        try:
            self._channel.send(command, (self._joined, self._popped))
            if not await self._joined.wait(timeout):
                raise ReplyLost from RedisTimeoutError(f"no reply within {timeout:.3f} s")
            return self._joined.result()
        except NoScriptError:
            return None
        except asyncio.CancelledError:
            # What takes the registration back must not overtake it.
            await self._joined.wait(_CLOSING_SECONDS)
            self.drop()
            raise
        except BaseException:
            self.drop()
            raise

    async def hear(self, timeout: float) -> bytes | None:
        if not await self._popped.wait(timeout):
            return None
        try:
            ticket = self._ticket()
        except ResponseError as error:
            self.drop()
            if was_broken(error):
                raise ReplyLost from named(error)
            raise
        except BaseException:
            self.drop()
            raise
        self._heard = self._dropped = True
        self._listeners.give_back(self._channel)
        return ticket

    async def hang_up(self) -> bytes | None:
        if not self._popped.is_done:
            # Then the server closes the connection, and what it sent before is all there is.
            await self._popped.wait(_CLOSING_SECONDS if self._channel.send_eof() else _LOOKING_SECONDS)
        self.drop()
        try:
            return None if self._heard else self._ticket()
        except (ReplyLost, ResponseError):
            return None

    def drop(self) -> None:
        """Close the connection."""
        if not self._dropped:
            self._dropped = True
            self._listeners.discard(self._channel)

    def _ticket(self) -> bytes:
        popped = self._popped.result()
        if popped is None:
            raise ReplyLost from RedisTimeoutError("the server has stopped to wait for a ticket")
        return bytes(popped[1])


class _Awaited:
    """One reply that somebody waits for, now and then."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def answer(self, reply: Any) -> None:
        self._future.set_result(understood(reply))

    def fail(self, error: Exception) -> None:
        self._future.set_result(caused(ReplyLost(), error))

    async def wait(self, seconds: float) -> bool:
        """Wait for it, so many seconds; a wait that is cancelled takes nothing away."""
        if not self._future.done():
            await asyncio.wait({self._future}, timeout=max(0.0, seconds))
        return self._future.done()

    def result(self) -> Any:
        reply = self._future.result()
        if isinstance(reply, Exception):
            raise reply
        return reply
