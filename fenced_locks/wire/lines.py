"""Script calls of one pool: one send and one read on connections that stand beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

from .base import Undo
from .connecting import exchange, exchange_all, maker, pack_eval, pack_evalsha, ready
from .listening import BlockedListener, listeners_of
from .own import OwnConnections

if TYPE_CHECKING:
    from ..scripts import Script


_PLAIN = (str, bytes, int, float, type, Enum)


class Lines:
    """The scripts of one pool, for any number of threads; see ``OwnConnections``."""

    hides_retries = False

    def __init__(self, pool: Any) -> None:
        self.server = server_of(pool)
        make = maker(pool)
        self._listeners = listeners_of(_identity(pool, self.server), make)
        self._connections = OwnConnections(pool, make)
        # Others: a transaction, which may take long, must not keep leases from being renewed.
        self.connections = OwnConnections(pool, make)

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        ends = time.monotonic() + timeout
        connection = None
        try:
            # Inside the try: an exception from a signal handler must not lose the connection's slot.
            connection = self._connections.borrow(ends)
            ready(connection, ends)
            reply = exchange(connection, pack_evalsha(script, keys, args), ends, undo)
            if isinstance(reply, NoScriptError):
                reply = exchange(connection, pack_eval(script, keys, args), ends, undo)
        finally:
            if connection is not None:
                self._connections.give_back(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        ends = time.monotonic() + timeout
        connection = None
        try:
            connection = self._connections.borrow(ends)
            ready(connection, ends)
            replies = exchange_all(connection, [pack_evalsha(script, *call) for call in calls], ends)
            unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            again = exchange_all(connection, [pack_eval(script, *calls[at]) for at in unknown], ends)
        finally:
            if connection is not None:
                self._connections.give_back(connection)
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
    kwargs = pool.connection_kwargs
    # Objects that each pool makes for itself are no difference, but for who knows the password.
    plain = {name: value for name, value in kwargs.items() if isinstance(value, _PLAIN)}
    return (*server, pool.connection_class, id(kwargs.get("credential_provider")), *sorted(plain.items()))
