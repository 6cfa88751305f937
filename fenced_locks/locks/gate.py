"""
The gate: who waits for what in this process, first come first served.

Only the front waiter of a resource talks to the server, so that a resource costs one connection however many threads
or tasks want it. It is keyed by server, database and resource, not by pool: some cache backends make a pool per thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Protocol

from ..awaits import Moment


class Place(Protocol):
    """A place in the queue of one resource; a thread's or a task's."""

    def call(self) -> bool:
        """Be told that this is the front now; by any thread. False if nobody is there any more."""

    def interrupts(self, queue: Iterable[Place]) -> bool:
        """Return whether somebody in the queue can go on only when this is through, as under a signal handler."""


class Gate:
    """The queues of all resources; used by any number of threads."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everybody: the threads that wait here do not exist in a forked child."""
        # Reentrant: a signal handler may want a lock, too.
        self._changing = threading.RLock()
        self._queues: dict[Hashable, deque[Place]] = {}

    def is_crowded(self, key: Hashable) -> bool:
        """Return whether anybody waits, so that a newcomer has to queue."""
        return key in self._queues

    def join(self, key: Hashable, place: Place) -> None:
        """Queue up; ``place`` is called when it is in front, at once if nobody else is there."""
        with self._changing:
            queue = self._queues.setdefault(key, deque())
            queue.append(place)
            if queue[0] is place:
                self._call_front(key, queue)
            elif place.interrupts(queue):
                place.call()

    def leave(self, key: Hashable, place: Place) -> None:
        """Go away, from any place in the queue or from none; the next one is called if this was the front."""
        with self._changing:
            queue = self._queues.get(key)
            if queue is None or place not in queue:
                return
            was_front = queue[0] is place
            queue.remove(place)
            if was_front:
                self._call_front(key, queue)

    def call_all(self, key: Hashable) -> None:
        """Let everybody try: the server cannot be reached, and one after the other would find that out in turn."""
        with self._changing:
            for place in list(self._queues.get(key, ())):
                place.call()

    def _call_front(self, key: Hashable, queue: deque[Place]) -> None:
        while queue and not queue[0].call():
            queue.popleft()
        if not queue:
            del self._queues[key]


class ThreadPlace:
    """The place of a thread, which blocks until it is called."""

    def __init__(self) -> None:
        self._called = threading.Lock()
        self._called.acquire()
        self._thread = threading.get_ident()
        self._in_front = self._told = False

    def interrupts(self, queue: Iterable[Place]) -> bool:
        return any(
            isinstance(place, ThreadPlace) and place._thread == self._thread for place in queue if place is not self
        )

    def call(self) -> bool:
        if not self._told:
            self._told = True
            self._called.release()
        return True

    def wait(self, seconds: float | None) -> bool:
        """Wait to be in front, for so many seconds or for ever; return whether it is."""
        if not self._in_front:
            self._in_front = self._called.acquire(timeout=-1 if seconds is None else _possible(seconds))
        return self._in_front


class TaskPlace:
    """The place of a task, which lets others run until it is called; made in its event loop."""

    def interrupts(self, queue: Iterable[Place]) -> bool:
        return False

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._called = Moment()

    def call(self) -> bool:
        if asyncio._get_running_loop() is self._loop:
            self._called.happen()
            return True
        try:
            self._loop.call_soon_threadsafe(self._called.happen)
        except RuntimeError:
            # The loop is closed, and its tasks are no more.
            return False
        return True

    async def wait(self, seconds: float | None) -> bool:
        """Wait to be in front, for so many seconds or for ever; return whether it is."""
        return await self._called.wait(seconds)


def _possible(seconds: float) -> float:
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)


gate = Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=gate.reset)
