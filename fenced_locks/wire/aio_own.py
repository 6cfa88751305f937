"""Connections of our own to the server of one pool in one event loop, for tasks that need one to themselves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from .base import NotSent
from .channels import connect, is_gone


class AsyncOwnConnections:
    """No more of them than the pool's ``max_connections``; closed with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any], limit: int) -> None:
        self._loop, self._make, self._limit = loop, make, limit
        self._idle: deque[Any] = deque()
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def borrow(self, seconds: float) -> Any:
        """
        Return a connection that nobody uses, connected or not, for ``give_back``.

        Raises:
            NotSent: There was none to be had within so many seconds.
        """
        ends = self._loop.time() + seconds
        while not self._idle and self._open >= self._limit:
            await self._wait(ends - self._loop.time())
        if self._idle:
            return self._idle.pop()
        connection = self._make()
        self._open += 1
        return connection

    async def _wait(self, seconds: float) -> None:
        if seconds <= 0:
            raise NotSent from RedisConnectionError("every connection of this client is in use")
        called = self._loop.create_future()
        self._waiting.append(called)
        try:
            await asyncio.wait({called}, timeout=seconds)
        except BaseException:
            if called.done():
                # Cancelled in the moment it was called: for somebody else, then.
                self._call_next()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(called)

    def give_back(self, connection: Any) -> None:
        """Keep a connection for whoever is next; one that may have a reply to come must be closed before."""
        if self._closed:
            close(connection)
        self._idle.append(connection)
        self._call_next()

    def _call_next(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)

    async def close(self) -> None:
        """Close every connection that nobody uses, and the others when they are given back."""
        self._closed = True
        for connection in self._idle:
            close(connection)


async def ready(connection: Any, seconds: float) -> None:
    """
    Connect within so many seconds, if need be.

    Raises:
        As ``connect``.
    """
    if is_gone(connection):
        close(connection)
        await connect(connection, seconds)


def close(connection: Any) -> None:
    """Close a connection without waiting; not where its loop is closed, and it with the loop."""
    with suppress(RuntimeError):
        connection._close()
