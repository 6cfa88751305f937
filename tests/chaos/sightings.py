"""Looks at the lock keys on the server all the time: who is stored there, from when to when."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import redis

from .journal import Journal
from .plans import RESOURCES
from .redis_world import RedisWorld

_PAUSE = 0.03


class Lookout:
    """A thread that samples the server of the moment, past the proxy."""

    def __init__(self, world: RedisWorld, journal: Journal) -> None:
        self._world, self._journal = world, journal
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and write down what it still remembers."""
        self._over.set()
        self._thread.join(10)
        self._write(list(self._seen))

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(redis.RedisError, OSError), self._world.client() as client:
                server = self._world.server
                while not self._over.wait(_PAUSE) and server is self._world.server:
                    self._look(client)
            self._over.wait(_PAUSE)

    def _look(self, client: redis.Redis) -> None:
        asked = time.monotonic_ns()
        with client.pipeline(transaction=True) as pipe:
            for resource in RESOURCES:
                pipe.get(resource)
                pipe.pttl(resource)
            replies: list[Any] = pipe.execute()
        answered = time.monotonic_ns()
        present = set()
        for resource, owner, left in zip(RESOURCES, replies[::2], replies[1::2], strict=True):
            if owner is not None:
                key = resource, owner.decode()
                present.add(key)
                seen = self._seen.setdefault(key, {"first": answered, "endless": False})
                # It was there when the server answered, so after we asked.
                seen["last"], seen["endless"] = asked, seen["endless"] or left == -1
        # What went away may come back with old data: it is written down again then, by the same name.
        self._write([key for key in self._seen if key not in present])

    def _write(self, keys: list[tuple[str, str]]) -> None:
        for resource, owner in keys:
            self._journal.write("seen", resource=resource, owner=owner, **self._seen.pop((resource, owner)))
