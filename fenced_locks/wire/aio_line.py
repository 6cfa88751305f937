"""The one connection of a pool in one event loop, for the scripts of any number of tasks."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .base import NotSent, ReplyLost, Undo
from .channels import Channel, caused, open_channel, understood
from .connecting import pack_eval, pack_evalsha

if TYPE_CHECKING:
    from ..scripts import Script

# How long a connection may be silent while replies are due, whatever the patience of those who wait, in seconds.
_SILENT_SECONDS = 3.0
# The same while it is being made.
_CONNECT_SECONDS = 10.0
# How often at most deadlines are looked at, in seconds.
_LOOK_SECONDS = 0.005
# How long a loop that ends waits for replies that are due, in seconds.
_ENDING_SECONDS = 0.5


class _Request:
    """One call; see ``Receiver``."""

    __slots__ = ("call", "channel", "command", "ends", "future", "is_whole", "line", "timeout", "undo")

    def __init__(self, line: Line, call: Undo, timeout: float, undo: Undo | None) -> None:
        self.line, self.call, self.timeout, self.undo = line, call, timeout, undo
        self.command = pack_evalsha(*call)
        self.is_whole = False
        # Where it was sent; None until then.
        self.channel: Channel | None = None
        self.future: asyncio.Future[Any] = line.loop.create_future()
        self.ends = line.loop.time() + timeout

    def answer(self, reply: Any) -> None:
        if self.future.done():
            return
        if isinstance(reply, NoScriptError) and not self.is_whole:
            self.command, self.is_whole, self.channel = pack_eval(*self.call), True, None
            self.line.ask(self)
            return
        reply = understood(reply)
        if isinstance(reply, Exception):
            self.future.set_exception(reply)
        else:
            self.future.set_result(reply)

    def fail(self, error: BaseException | None) -> None:
        if not self.future.done():
            self.future.set_exception(caused(NotSent() if self.channel is None else ReplyLost(), error))

    def refuse(self, error: BaseException) -> None:
        """Fail for want of a connection."""
        if isinstance(error, NotSent):
            self.fail(error.__cause__)
        elif isinstance(error, asyncio.CancelledError):
            self.fail(RedisConnectionError("the event loop ends"))
        elif not self.future.done():
            # One of its own: raising notes in the error where it was raised.
            self.future.set_exception(copy.copy(error))

    def expire(self) -> None:
        """Stop waiting, since the time is over."""
        self.fail(RedisTimeoutError(f"no reply within {self.timeout:.3f} s"))
        self.take_back()

    def take_back(self) -> None:
        """Have the server undo it, right behind it: nobody will learn the reply."""
        if self.undo is not None and self.channel is not None and self.channel.is_open:
            self.channel.send(pack_eval(*self.undo), (_NOBODY,))
        self.undo = None


class _Nobody:
    """Who waits for the reply to an undo."""

    timeout = _SILENT_SECONDS

    def answer(self, reply: Any) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass

    def take_back(self) -> None:
        pass


_NOBODY = _Nobody()


class Line:
    """
    The connection of one pool in one loop.

    What it does for all of its callers it does in an empty context: that of whoever happens to be first would be kept.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> None:
        self.loop, self._make = loop, make
        self._channel: Channel | None = None
        self._waiting: list[_Request] = []
        self._connecting: asyncio.Task[None] | None = None
        self._will_flush = self._closed = False
        # One timer for all, at or before the next deadline: one for each would cost a quarter of all the time.
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = inf

    async def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None
    ) -> Any:
        request = _Request(self, (script, keys, args), timeout, undo)
        self.ask(request)
        try:
            return await request.future
        except Exception:
            raise
        except BaseException:
            # Cancelled, or thrown away by whoever collects garbage, in any thread.
            request.future.cancel()
            if asyncio._get_running_loop() is self.loop:
                request.take_back()
            raise
        finally:
            if self._closed:
                self._close_if_idle()

    def ask(self, request: _Request) -> None:
        """Send the request: at once if nothing else is under way, else with all others of this turn of the loop."""
        self._waiting.append(request)
        if request.ends < self._looks_at:
            self._look_at(request.ends)
        if self._channel is not None and not self._channel.due:
            self._flush()
        else:
            self._flush_soon()

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = self.loop.call_at(when, self._look, context=Context())

    def _look(self) -> None:
        """Look whose time is over."""
        self._timer, self._looks_at = None, inf
        now, outstanding = self.loop.time(), self._outstanding()
        for request in outstanding:
            if request.ends <= now:
                request.expire()
        left = [request.ends for request in outstanding if request.ends > now]
        if len(left) < len(outstanding):
            self._break_off_if_silent()
        if left:
            self._look_at(max(min(left), now + _LOOK_SECONDS))

    def _outstanding(self) -> list[_Request]:
        sent = self._channel.due if self._channel is not None else ()
        return [request for request in (*self._waiting, *sent) if request is not _NOBODY and not request.future.done()]

    def _break_off_if_silent(self) -> None:
        """Close the connection if whoever has waited longest has waited for as long as it may, in vain."""
        channel = self._channel
        if channel is None or not channel.due:
            return
        # Not quite as long: a request is sent a moment after it was made.
        silent = channel.silent_seconds()
        if silent >= 0.9 * min(channel.due[0].timeout, _SILENT_SECONDS):
            self._channel = None
            for request in list(channel.due):
                request.take_back()
            channel.break_off(RedisTimeoutError(f"nothing came from the server for {silent:.3f} s"))

    async def close(self) -> None:
        """Close the connection when what was asked is answered, or should have been."""
        self._closed = True
        # What is closed in the same turn may still have to be asked.
        await asyncio.sleep(0)
        futures = [request.future for request in self._outstanding()]
        if futures:
            await asyncio.wait(futures, timeout=_ENDING_SECONDS)
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait({self._connecting}, timeout=_ENDING_SECONDS)
        if self._channel is not None:
            await self._channel.close()

    def _close_if_idle(self) -> None:
        if self._channel is not None and not (self._channel.due or self._waiting):
            self._channel.break_off(RedisConnectionError("closed with its event loop"))

    def _flush_soon(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            self.loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._will_flush = False
        self._flush()

    def _flush(self) -> None:
        self._waiting = [request for request in self._waiting if not request.future.done()]
        if not self._waiting:
            return
        self._break_off_if_silent()
        channel = self._channel
        if channel is None or not channel.is_open:
            self._connect_soon()
            return
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.channel = channel
        channel.send(b"".join([request.command for request in waiting]), waiting)

    def _connect_soon(self) -> None:
        if self._connecting is None or self._connecting.done():
            longest = max(request.ends for request in self._waiting) - self.loop.time()
            self._connecting = Context().run(self.loop.create_task, self._connect(min(longest, _CONNECT_SECONDS)))

    async def _connect(self, seconds: float) -> None:
        ends = self.loop.time() + seconds
        try:
            self._channel = await open_channel(self._make, seconds)
        except BaseException as error:  # noqa: BLE001 - those who wait are told, nobody else
            # A loop that ends cancels every task, and locks are still to be given back. And that the time of those who
            # began this is over says nothing about those who came later.
            cancelled = isinstance(error, asyncio.CancelledError) and not self._closed
            too_slow = isinstance(error, NotSent) and self.loop.time() >= ends
            if not (cancelled or too_slow):
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    request.refuse(error)
        self._flush_soon()
