"""Connections on which tasks block, in one event loop; counted with those of threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import clock
from ..awaits import Moment
from .base import Claim, JoinedAndCancelled, ReplyLost
from .budget import budget
from .channels import Channel, caused, open_channel, understood
from .connecting import named, pack, pack_eval, pack_evalsha, was_broken

if TYPE_CHECKING:
    from ..scripts import Script

# How long to wait for a server's word that it has closed the connection, in seconds.
_CLOSING_SECONDS = 0.2
# How long who is cancelled waits to know whether it is registered, in seconds.
_JOINING_SECONDS = 0.5
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
        self._joined, self._popped, self._answered = _Awaited(), _Awaited(), _Awaited()
        self._heard = self._over = False
        # The one that was sent.
        self._claim: Claim | None = None
        self.claimed_at: float | None = None

    async def start(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> Any:
        """Run the script and block; return its reply, None if the server does not know it."""
        # In one piece: between two the ticket of this registration could find nobody.
        command = pack_evalsha(script, keys, args) + pack(b"BLPOP", wake, b"%.3f" % seconds)
        try:
            self._channel.send(command, (self._joined, self._popped))
            await self._joined.wait(timeout)
            return self._joined_reply(timeout)
        except asyncio.CancelledError as cancelled:
            # What takes the registration back must not overtake it, nor a ticket be lost.
            await _outlast(self._joined, _JOINING_SECONDS)
            try:
                reply = self._joined_reply(timeout)
            except Exception:  # noqa: BLE001 - nobody is to hear of it but as a cancellation
                self.drop()
                raise cancelled from None
            raise JoinedAndCancelled(cancelled, self, reply) from None
        except BaseException:
            self.drop()
            raise

    def _joined_reply(self, timeout: float) -> Any:
        try:
            if not self._joined.happened:
                raise ReplyLost from RedisTimeoutError(f"no reply within {timeout:.3f} s")
            return self._joined.result()
        except NoScriptError:
            return None

    async def hear(self, timeout: float, claim: Claim | None = None) -> bytes | None:
        if claim is not None and self._popped.happened:
            self._send(claim)
        elif claim is not None:
            self._popped.first = partial(self._send, claim)
        try:
            if not await self._popped.wait(timeout):
                return None
        finally:
            self._popped.first = None
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
        self._heard = True
        if self._claim is None:
            self._keep_channel()
        return ticket

    def _send(self, claim: Claim) -> None:
        popped = self._popped.reply
        if isinstance(popped, list) and self._channel.is_open:
            command = pack_evalsha(claim.script, claim.keys, (*claim.args, bytes(popped[1])))
            self._claim, self.claimed_at = claim, clock.monotonic()
            self._channel.send(command, (self._answered,))

    async def answer(self, timeout: float) -> Any:
        if not await self._answered.wait(timeout):
            self.drop()
            raise ReplyLost from RedisTimeoutError(f"no reply within {timeout:.3f} s")
        try:
            reply = self._answered.result()
        except NoScriptError:
            reply = None
        except ResponseError:
            self._keep_channel()
            raise
        except BaseException:
            self.drop()
            raise
        self._keep_channel()
        return reply

    async def hang_up(self) -> bytes | None:
        if self._claim is not None:
            self.drop()
            return None
        if not self._popped.happened:
            # Then the server closes the connection, and what it sent before is all there is.
            await self._popped.wait(_CLOSING_SECONDS if self._channel.send_eof() else _LOOKING_SECONDS)
        self.drop()
        try:
            return None if self._heard else self._ticket()
        except (ReplyLost, ResponseError):
            return None

    def _keep_channel(self) -> None:
        self._over = True
        self._listeners.give_back(self._channel)

    def drop(self) -> None:
        """Close the connection; a claim whose answer nobody has read is undone."""
        if not self._over:
            self._over = True
            if self._claim is not None and self._channel.is_open and asyncio._get_running_loop() is self._popped.loop:
                self._channel.send(pack_eval(*self._claim.undo), (_Awaited(),))
            self._listeners.discard(self._channel)

    def _ticket(self) -> bytes:
        popped = self._popped.result()
        if popped is None:
            raise ReplyLost from RedisTimeoutError("the server has stopped to wait for a ticket")
        return bytes(popped[1])


class _Awaited(Moment):
    """One reply that somebody waits for, now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: Any = None
        # What is to be done before anybody is told.
        self.first: Callable[[], None] | None = None

    def answer(self, reply: Any) -> None:
        self.reply = understood(reply)
        if self.first is not None:
            self.first()
        self.happen()

    def fail(self, error: Exception) -> None:
        self.reply = caused(ReplyLost(), error)
        self.happen()

    def result(self) -> Any:
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


async def _outlast(moment: Moment, seconds: float) -> None:
    """Wait for it, also when cancelled."""
    ends = moment.loop.time() + seconds
    while not moment.happened and (left := ends - moment.loop.time()) > 0:
        with suppress(asyncio.CancelledError):
            await moment.wait(left)
