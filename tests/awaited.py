"""``AsyncFencedLock`` used as if it blocked, so that one test can be about both locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import redis.asyncio

from fenced_locks import AsyncFencedLock
from tests.fakes import connecting_async


class Awaited:
    """
    A lock that awaits, with methods that block.

    Each call is a task of its own; a lease whose task is done is anybody's, so the next call may use it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lock: AsyncFencedLock) -> None:
        self._loop, self._lock = loop, lock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._lock, name)
        return self._blocking(value) if iscoroutinefunction(value) else value

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._loop.run_until_complete(method(*args, **kwargs))


class Loop:
    """An event loop for such locks, and their clients; `close` ends both."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clients: list[redis.asyncio.Redis] = []

    def client(self, url: str, **options: Any) -> redis.asyncio.Redis:
        """Return a client of the server at this address."""
        self._clients.append(redis.asyncio.Redis.from_url(url, **{**connecting_async(), **options}))
        return self._clients[-1]

    def lock(self, client: redis.asyncio.Redis, name: str, **options: Any) -> Awaited:
        """Return a lock that blocks."""
        return Awaited(self._loop, AsyncFencedLock(client, name, **options))

    def close(self) -> None:
        """Close the clients and the loop."""
        for client in self._clients:
            self._loop.run_until_complete(client.aclose())
        # The connections of locks are closed by an asynchronous generator.
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
