"""
Connections of our own to the server of one pool, beside it, for whoever needs one to itself for a while.

A pool that the application has emptied cannot keep a holder from releasing, and a deadline holds even while a
connection is being made.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet, finalize

from redis.exceptions import ConnectionError as RedisConnectionError

from .base import NotSent


class OwnConnections:
    """
    No more of them than the pool's ``max_connections``; used by any number of threads, empty after a fork.

    They are closed with the pool object, not by the client's ``close()``.
    """

    def __init__(self, pool: Any, make: Callable[[], Any]) -> None:
        self._make = make
        self._limit = int(pool.max_connections)
        self._idle: deque[Any] = deque()
        self.reset()
        _all.add(self)
        # By a finalizer, which holds them until then: collected in a cycle with the pool, they would be warned about.
        finalize(pool, _close_all, self._idle).atexit = False

    def reset(self) -> None:
        """Forget every connection; a forked child must not touch those of its parent."""
        self._idle.clear()
        self._open = 0
        self._waiting = 0
        self._returned = threading.Condition()

    def borrow(self, ends: float) -> Any:
        """
        Return a connection that nobody uses, connected or not, for ``give_back``.

        Raises:
            NotSent: There was none to be had until ``ends``, in monotonic time.
        """
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

    def give_back(self, connection: Any) -> None:
        """Keep a connection for whoever is next; one that may have a reply to come must be closed before."""
        self._idle.append(connection)
        if self._waiting:
            with self._returned:
                self._returned.notify()

    def _new(self) -> Any:
        connection = self._make()
        self._open += 1
        return connection


def _close_all(connections: deque[Any]) -> None:
    while connections:
        connections.pop().disconnect()


_all: WeakSet[OwnConnections] = WeakSet()


def _reset_after_fork() -> None:
    for connections in _all:
        connections.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
