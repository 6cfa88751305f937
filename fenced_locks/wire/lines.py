"""
Script calls of one pool: one send and one read on connections that stand beside it.

A pool that the application has emptied cannot keep a holder from releasing, and a deadline holds even while a
connection is being made. No more of them exist than the pool's ``max_connections``.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from .base import NotSent, Undo
from .connecting import exchange, exchange_all, maker, pack_eval, pack_evalsha, ready
from .listening import BlockedListener, listeners_of

if TYPE_CHECKING:
    from ..scripts import Script


class Lines:
    """
    The connections for the scripts of one pool; used by any number of threads, empty after a fork.

    They are closed with the pool object, not by the client's ``close()``.
    """

    hides_retries = False

    def __init__(self, pool: Any) -> None:
        self.server = server_of(pool)
        self._make = maker(pool)
        self._listeners = listeners_of(_identity(pool, self.server), self._make)
        self._limit = int(pool.max_connections)
        self._idle: deque[Any] = deque()
        self.reset()
        _all_lines.add(self)
        # By a finalizer, which holds them until then: collected in a cycle with the pool, they would be warned about.
        finalize(pool, _close_all, self._idle).atexit = False

    def reset(self) -> None:
        """Forget every connection; a forked child must not touch those of its parent."""
        self._idle.clear()
        self._open = 0
        self._waiting = 0
        self._returned = threading.Condition()

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        ends = time.monotonic() + timeout
        connection = None
        try:
            # Inside the try: an exception from a signal handler must not lose the connection's slot.
            connection = self._borrow(ends)
            ready(connection, ends)
            reply = exchange(connection, pack_evalsha(script, keys, args), ends, undo)
            if isinstance(reply, NoScriptError):
                reply = exchange(connection, pack_eval(script, keys, args), ends, undo)
        finally:
            if connection is not None:
                self._give_back(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        ends = time.monotonic() + timeout
        connection = None
        try:
            connection = self._borrow(ends)
            ready(connection, ends)
            replies = exchange_all(connection, [pack_evalsha(script, *call) for call in calls], ends)
            unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            again = exchange_all(connection, [pack_eval(script, *calls[at]) for at in unknown], ends)
        finally:
            if connection is not None:
                self._give_back(connection)
        for at, reply in zip(unknown, again, strict=True):
            replies[at] = reply
        return replies

    def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> tuple[BlockedListener, Any] | None:
        connection = self._listeners.borrow()
        if connection is None:
            return None
        listener = BlockedListener(self._listeners, connection)
        return listener, listener.start(script, keys, args, timeout, wake, seconds)

    def _borrow(self, ends: float) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._returned:
            # Counted before looking again: who gives back after that look sees somebody waiting.
            self._waiting += 1
            try:
                while not self._idle and self._open >= self._limit:
                    if not self._returned.wait(ends - time.monotonic()):
                        raise NotSent from RedisConnectionError("every connection of this client is in use")
                return self._idle.pop() if self._idle else self._new()
            finally:
                self._waiting -= 1

    def _new(self) -> Any:
        connection = self._make()
        self._open += 1
        return connection

    def _give_back(self, connection: Any) -> None:
        self._idle.append(connection)
        if self._waiting:
            with self._returned:
                self._returned.notify()


def server_of(pool: Any) -> tuple[object, ...]:
    """Return what tells the server and database of one pool from another's."""
    kwargs = pool.connection_kwargs
    database = kwargs.get("db") or 0
    if hasattr(pool, "sentinel_manager"):
        sentinels = [client.get_connection_kwargs() for client in pool.sentinel_manager.sentinels]
        watchers = sorted(f"{sentinel.get('host')}:{sentinel.get('port')}" for sentinel in sentinels)
        return (pool.service_name, *watchers, database)
    return (kwargs.get("path") or (kwargs.get("host", "localhost"), kwargs.get("port", 6379)), database)


def _identity(pool: Any, server: tuple[object, ...]) -> tuple[object, ...]:
    """Return what tells how a pool connects: as whom, and in which way."""
    if hasattr(pool, "sentinel_manager"):
        # Its connections ask the pool itself which server to connect to.
        return (*server, id(pool))
    names = ("username", "password", "protocol", "client_name")
    login = [pool.connection_kwargs.get(name) for name in names]
    return (*server, pool.connection_class, id(pool.connection_kwargs.get("credential_provider")), *login)


def _close_all(connections: deque[Any]) -> None:
    while connections:
        connections.pop().disconnect()


_all_lines: WeakSet[Lines] = WeakSet()


def _reset_after_fork() -> None:
    for lines in _all_lines:
        lines.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
