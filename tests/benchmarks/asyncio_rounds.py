"""The rounds of the benchmark ``asyncio_locks``: each in an event loop and with a client of its own."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import redis
import servers
from redis import asyncio as aioredis
from redis.asyncio.lock import Lock
from redis.exceptions import ConnectionError as RedisConnectionError

from fenced_locks import AsyncFencedLock, FencedLock

LEASE = 10
UNLIMITED = 2**31
LOOK_EVERY = 0.02
# A thousand connections that are opened at once take their time, where the machine has other things to do.
OPENING = 60
# How long connections that were closed may still be counted by the server, in seconds.
SETTLING = 5.0


class OneLock(NamedTuple):
    """What came of many tasks on one lock: grants per second, how many tasks got one, and the most connections."""

    rate: float
    served: float
    connections: int


class ManyLocks(NamedTuple):
    """How long a cycle on a lock of its own took for all tasks, in milliseconds: at first, and once more."""

    first: float
    again: float


class Cost(NamedTuple):
    """CPU time of this process in seconds, and how many scripts the server ran meanwhile."""

    cpu: float
    scripts: int


class Observer:
    """Looks at the server on a connection of its own, which blocks."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._idle = self._connections()
        self.most_connections = 0

    def close(self) -> None:
        """Close our own connection."""
        self._client.close()

    def server_version(self) -> str:
        """Return what the server is, and its version."""
        return servers.redis_version(self._client)

    def clear(self) -> None:
        """Delete all keys, and wait until the connections of others are gone."""
        self._client.flushdb()
        ends = time.monotonic() + SETTLING
        while self._connections() > self._idle and time.monotonic() < ends:
            time.sleep(LOOK_EVERY)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Find the most connections, without our own, in a thread beside the event loop."""
        self.most_connections, over = 0, threading.Event()

        def look() -> None:
            while not over.wait(LOOK_EVERY):
                self.most_connections = max(self.most_connections, self._connections() - self._idle)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def cost(self) -> Cost:
        """Return what was used since the beginning."""
        scripts = self._client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        return Cost(time.process_time(), scripts)

    def cost_since(self, before: Cost) -> Cost:
        """Return what was used since then."""
        return Cost(*(now - then for now, then in zip(self.cost(), before, strict=True)))

    def _connections(self) -> int:
        return int(self._client.info("clients")["connected_clients"])


class Arena:
    """One lock that many tasks of one loop compete for."""

    def __init__(self, client: aioredis.Redis, lock_class: type[Lock], work: float, again: bool) -> None:
        self._client, self._lock_class, self._work, self._again = client, lock_class, work, again
        self._held = self.is_over = False
        # Which task it was, per grant.
        self.grants: list[int] = []

    async def compete(self, number: int) -> None:
        """Acquire a new lock object, work and release it; over and over, or once."""
        while not self.is_over:
            lock = self._lock_class(self._client, "benchmark", timeout=LEASE)
            await lock.acquire()
            try:
                await self._hold(number)
            finally:
                # Also when cancelled: before Python 3.12 redis-py loses the cancellations of others, who go on to wait.
                await lock.release()
            if not self._again:
                return

    async def _hold(self, number: int) -> None:
        if self._held:
            raise RuntimeError("Two tasks held the lock at once.")
        self._held = True
        self.grants.append(number)
        try:
            await asyncio.sleep(0 if self.is_over else self._work)
        finally:
            self._held = False


def client_of(url: str, max_connections: int = UNLIMITED) -> aioredis.Redis:
    """Return a client; the default of some versions is a pool of 100 connections, and 5 s to open one."""
    return aioredis.Redis.from_url(url, max_connections=max_connections, socket_connect_timeout=OPENING)


async def one_lock(
    url: str, lock_class: type[Lock], observer: Observer, *, tasks: int, seconds: float, work: float, again: bool
) -> OneLock:
    """Let tasks compete until each has had the lock, or until the time is over."""
    async with client_of(url) as client:
        # Opens the connections, and loads the scripts.
        await one_each(client, lock_class, tasks)
        arena = Arena(client, lock_class, work, again)
        with observer.watching():
            started = time.perf_counter()
            running = [asyncio.ensure_future(arena.compete(number)) for number in range(tasks)]
            await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            took, grants = time.perf_counter() - started, list(arena.grants)
        arena.is_over = True
        for task in running:
            task.cancel()
        for error in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
    return OneLock(len(grants) / took, len(set(grants)), observer.most_connections)


def median_of_one_lock(measured: Sequence[OneLock]) -> OneLock:
    """Return the medians over the rounds, and the most connections of any."""
    return OneLock(
        rate=statistics.median(one.rate for one in measured),
        served=statistics.median(one.served for one in measured),
        connections=max(one.connections for one in measured),
    )


async def many_locks(url: str, lock_class: type[Lock], *, tasks: int) -> ManyLocks:
    """Let each task acquire and release a lock of its own, all at once; then once more, on the same connections."""
    async with client_of(url) as client:
        first = await one_each(client, lock_class, tasks)
        return ManyLocks(first, await one_each(client, lock_class, tasks))


async def failures(url: str, lock_class: type[Lock], *, tasks: int, max_connections: int) -> int:
    """Return how many of those tasks fail for lack of a connection where a pool has only so many."""
    async with client_of(url, max_connections) as client:
        cycles = [cycle(client, lock_class, f"benchmark-{number}") for number in range(tasks)]
        errors = [error for error in await asyncio.gather(*cycles, return_exceptions=True) if error is not None]
    for error in errors:
        if not isinstance(error, RedisConnectionError):
            raise error
    return len(errors)


async def one_each(client: aioredis.Redis, lock_class: type[Lock], tasks: int) -> float:
    """Return how many milliseconds it took until all tasks had acquired and released a lock of their own."""
    started = time.perf_counter()
    await asyncio.gather(*[cycle(client, lock_class, f"benchmark-{number}") for number in range(tasks)])
    return (time.perf_counter() - started) * 1e3


async def cycle(client: aioredis.Redis, lock_class: type[Lock], name: str) -> None:
    """Acquire and release a new lock object."""
    lock = lock_class(client, name, timeout=LEASE)
    await lock.acquire()
    await lock.release()


async def cycles(client: aioredis.Redis, lock_class: type[Lock], size: int) -> None:
    """Acquire and release ``size`` times, one after the other."""
    for _ in range(size):
        await cycle(client, lock_class, "benchmark")


def renewal_by_thread(url: str, observer: Observer, *, locks: int, lease: float, seconds: float) -> Cost:
    """Return what it costs to have this many ``FencedLock`` renewed while nothing else happens."""
    with redis.Redis.from_url(url) as client:
        held = [FencedLock(client, f"benchmark-{n}", timeout=lease, renew=True) for n in range(locks)]
        for lock in held:
            lock.acquire()
        before = observer.cost()
        time.sleep(seconds)
        cost = observer.cost_since(before)
        for lock in held:
            lock.release()
    return cost


async def renewal_by_task(url: str, observer: Observer, *, locks: int, lease: float, seconds: float) -> Cost:
    """Return the same of ``AsyncFencedLock``."""
    async with client_of(url) as client:
        held = [AsyncFencedLock(client, f"benchmark-{n}", timeout=lease, renew=True) for n in range(locks)]
        for lock in held:
            await lock.acquire()
        before = observer.cost()
        await asyncio.sleep(seconds)
        cost = observer.cost_since(before)
        for lock in held:
            await lock.release()
    return cost
