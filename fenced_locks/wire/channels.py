"""
Connections of an event loop: made by redis-py with the client's settings, then read and written by callbacks.

No task reads them, so that there is none to be cancelled with the others when a loop ends, while locks are given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError

from ..awaits import within
from .base import REFUSED_FOR_GOOD, UNREACHABLE, NotSent, ReplyLost
from .connecting import REFERRING, named
from .replies import Replies

# How long a connection that is being closed may take to say goodbye, in seconds.
_GOODBYE_SECONDS = 0.1


class Receiver(Protocol):
    """Who waits for one reply."""

    def answer(self, reply: Any) -> None:
        """Take the reply; an error of the server is given, not raised."""

    def fail(self, error: Exception) -> None:
        """Be told that there will be none."""


E = TypeVar("E", bound=Exception)


def caused(error: E, cause: BaseException | None) -> E:
    """Return an error as ``raise … from`` would raise it."""
    error.__cause__ = cause
    return error


def understood(reply: Any) -> Any:
    """Return what to make of a reply: one that is a connection error, such as LOADING, says as much as none."""
    if isinstance(reply, UNREACHABLE) and not isinstance(reply, REFUSED_FOR_GOOD):
        return caused(ReplyLost(), reply)
    return reply


class Channel(asyncio.Protocol):
    """
    One connection that is set up, and who waits for what on it.

    Attributes:
        due: Whose replies are outstanding, oldest first.
        lost: Done when the connection is closed.
    """

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        # Kept: collected before its transport is closed, it would warn.
        self._connection = connection
        self._loop = loop
        self._transport = connection._writer.transport
        self._replies = Replies(connection._parser.parse_error)
        self._is_managed = hasattr(connection, "connection_pool")
        self.due: deque[Any] = deque()
        self._silent_since = loop.time()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether it can be used, as far as anybody knows."""
        return not (self._transport.is_closing() or self._loop.is_closed())

    def send(self, data: bytes, receivers: Iterable[Receiver]) -> None:
        """Send commands, and note who waits for their replies."""
        if not self.due:
            self._silent_since = self._loop.time()
        self.due.extend(receivers)
        self._transport.write(data)

    def silent_seconds(self) -> float:
        """How long nothing has come, of what is due."""
        return self._loop.time() - self._silent_since

    def send_eof(self) -> bool:
        """Say that nothing more will be sent, upon which the server closes; False with TLS, where that cannot be."""
        if not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def break_off(self, error: Exception) -> None:
        """Close, what was sent going out first; nobody who waits will hear more than this error."""
        self._fail_all(error)
        self._close()
        # A server that takes nothing any more must not keep it open.
        self._loop.call_later(_GOODBYE_SECONDS, self._transport.abort)

    async def close(self) -> None:
        """Close, and return when that has happened."""
        if not self.lost.done():
            self.break_off(RedisConnectionError("closed with its event loop"))
            await asyncio.wait({self.lost}, timeout=_GOODBYE_SECONDS)
            self._transport.abort()
            await asyncio.wait({self.lost}, timeout=_GOODBYE_SECONDS)

    def data_received(self, data: bytes) -> None:
        self._silent_since = self._loop.time()
        try:
            for reply in self._replies.feed(data):
                if isinstance(reply, ReadOnlyError) and self._is_managed:
                    # As redis-py has it: the sentinels are asked again.
                    raise RedisConnectionError("the previous master is now a replica")
                if not self.due:
                    raise RedisConnectionError(f"the server sent {str(reply)[:80]!r} to nobody")
                self.due.popleft().answer(reply)
        except (RedisConnectionError, InvalidResponse, ValueError) as error:
            self.break_off(named(error))

    def eof_received(self) -> None:
        """The transport closes itself, also half open."""

    def connection_lost(self, error: Exception | None) -> None:
        self._close()
        self.lost.set_result(None)
        self._fail_all(named(error) if error else RedisConnectionError("connection closed by the server"))

    def _fail_all(self, error: Exception) -> None:
        while self.due:
            self.due.popleft().fail(error)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection._close()
            self._connection = None


def maker(pool: Any) -> Callable[[], Any]:
    """Return what makes connections like those of ``pool``, without referring to it."""
    make = pool.connection_class
    kwargs = {key: value for key, value in pool.connection_kwargs.items() if key not in REFERRING}

    def new() -> Any:
        connection = make(**kwargs)
        connection.retry = Retry(NoBackoff(), 0)
        return connection

    return new


async def open_channel(make: Callable[[], Any], seconds: float) -> Channel:
    """
    Return a new channel, connected within so many seconds.

    Raises:
        As ``connect``.
    """
    connection = make()
    await connect(connection, seconds)
    return Channel(connection, asyncio.get_running_loop())


async def connect(connection: Any, seconds: float) -> None:
    """
    Connect within so many seconds, or in the time that the settings allow if that is shorter.

    Raises:
        NotSent: The server cannot be reached.
        redis.exceptions.AuthenticationError, AuthorizationError, ResponseError: It does not want us.
    """
    is_connected = False
    try:
        await within(seconds, connection.connect)
        if is_gone(connection):
            raise RedisConnectionError("closed by the server at once")
        is_connected = True
    except REFUSED_FOR_GOOD:
        raise
    except UNREACHABLE as error:
        raise NotSent from named(error)
    finally:
        if not is_connected:
            # Half made, it might not have selected its database yet. A loop that is closed cannot close it any more.
            with suppress(RuntimeError):
                connection._close()


def is_gone(connection: Any) -> bool:
    """Return whether a connection is closed, as far as anybody knows."""
    writer = connection._writer
    return writer is None or writer.transport.is_closing() or connection._reader.at_eof()
