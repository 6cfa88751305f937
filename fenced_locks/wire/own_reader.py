"""
Script calls on connections that read their replies in a way of their own, such as those of ``fakeredis``.

Our other wires write to the socket of a connection and read from it. These connections may have none, or one that only
they can read, so each is asked for one reply at a time; waiters only probe.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import finalize

from redis.exceptions import ResponseError

from ..loops import close_everywhere, of_this_loop
from . import channels, connecting
from .base import REFUSED_FOR_GOOD, UNREACHABLE, NotSent
from .clients import AsyncClientWire, ClientWire
from .lines import server_of


def has_own_reader(pool: Any) -> bool:
    """Return whether the connections of a pool do not read as redis-py's do."""
    bases = getattr(pool.connection_class, "__mro__", ())
    reader = next((base for base in bases if "read_response" in vars(base)), object)
    return reader.__module__.partition(".")[0] != "redis"


class OwnReaderWire(ClientWire):
    """The connections of one pool, beside it; nothing is sent again behind our back."""

    hides_retries = False

    def __init__(self, pool: Any) -> None:
        # Without the client, which refers to the pool: they are to be collected together.
        self.server = _server(pool)
        self._make = connecting.maker(pool)
        self._idle: deque[Any] = deque()
        self._process = os.getpid()
        finalize(pool, _close_all, self._idle).atexit = False

    def _run(self, command: bytes, script: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        connection = self._borrow()
        try:
            connection.connect()
        except REFUSED_FOR_GOOD:
            raise
        except UNREACHABLE as error:
            raise NotSent from error
        try:
            connection.send_command(command, script, len(keys), *keys, *args, check_health=False)
            reply = connection.read_response(disable_decoding=True)
        except ResponseError:
            self._idle.append(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append(connection)
        return reply

    def _borrow(self) -> Any:
        if self._process != os.getpid():
            # A forked child must not touch those of its parent.
            self._process = os.getpid()
            self._idle.clear()
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()


class AsyncOwnReaderWire(AsyncClientWire):
    """The same for tasks: the connections of one pool in each event loop."""

    hides_retries = False

    def __init__(self, pool: Any) -> None:
        # Without the client, which refers to the pool: they are to be collected together.
        self.server = _server(pool)
        self._make = channels.maker(pool)
        finalize(pool, close_everywhere, self).atexit = False

    async def _run(self, command: bytes, script: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        idle = of_this_loop(self, lambda _: _Idle()).connections
        connection = idle.pop() if idle else self._make()
        try:
            await connection.connect()
        except REFUSED_FOR_GOOD:
            raise
        except UNREACHABLE as error:
            raise NotSent from error
        try:
            await connection.send_command(command, script, len(keys), *keys, *args, check_health=False)
            reply = await connection.read_response(disable_decoding=True)
        except ResponseError:
            idle.append(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        idle.append(connection)
        return reply


class _Idle:
    """The connections of one event loop that nobody uses."""

    def __init__(self) -> None:
        self.connections: list[Any] = []

    async def close(self) -> None:
        while self.connections:
            await self.connections.pop().disconnect()

    def abandon(self) -> None:
        pass


def _server(pool: Any) -> tuple[object, ...]:
    # One of fakeredis may be given as an object, and at an address it is not the real one there.
    return (*server_of(pool), "own reader", id(pool.connection_kwargs.get("server")))


def _close_all(connections: deque[Any]) -> None:
    while connections:
        connections.pop().disconnect()
