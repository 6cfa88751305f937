"""The real side of `test_lease_machine.py`: locks of both kinds behind a proxy that loses what it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from fenced_locks import FencedLock, IssuerError, LeaseHasNoEnd, LeaseLost, NotHeld
from tests.awaited import Loop
from tests.proxy import Proxy

SCRIPT = ("EVALSHA", "EVAL")


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the kind of error that it raises."""
    try:
        return call()
    except (IssuerError, LeaseHasNoEnd, LeaseLost, NotHeld) as error:
        return type(error)


class World:
    """
    The server, the proxy in front of it, and who goes through that; for all runs of a test.

    Attributes:
        r: A client that does not go through the proxy.
        scripts_are_known: Whether the server surely has every script.
    """

    def __init__(self, r: redis.Redis, proxy: Proxy, client: redis.Redis, loop: Loop, issuer: str) -> None:
        self.r = r
        self.scripts_are_known = False
        self._proxy, self._loop, self._issuer = proxy, loop, issuer
        self._client, self._async_client = client, loop.client(proxy.url)

    def locks(self, name: str, timeouts: dict[str, float | None]) -> dict[str, Any]:
        """Return a lock for each of these, one that awaits where its name says so."""
        made: dict[str, Any] = {}
        for who, timeout in timeouts.items():
            options: dict[str, Any] = {"timeout": timeout, "blocking": False, "issuer": self._issuer}
            if "awaiting" in who:
                made[who] = self._loop.lock(self._async_client, name, **options)
            else:
                made[who] = FencedLock(self._client, name, **options)
        return made

    @contextmanager
    def losing(self, lost: Sequence[str]) -> Iterator[dict[str, list[float]]]:
        """Lose these attempts of the next operation; yield the clocks, of which each is read before and after it."""
        if lost and not self.scripts_are_known:
            self._load_scripts()
        for what in lost:
            (self._proxy.drop_reply if what == "reply" else self._proxy.drop_request)(SCRIPT)
        clocks = {"server_us": [self._server_us()], "local": [time.monotonic()]}
        try:
            yield clocks
        finally:
            clocks["local"].append(time.monotonic())
            clocks["server_us"].append(self._server_us())
            # What was refused before anything was sent has met none of them.
            self._proxy.spare()

    def _load_scripts(self) -> None:
        """An attempt that the server answers by NOSCRIPT would be none."""
        lock = FencedLock(self.r, "warm-up", timeout=60, issuer=self._issuer)
        lock.acquire(token="chosen")
        for use in (lock.advance, lock.ensure_held, lock.owned, lock.locked, lock.reacquire, lock.release):
            use()
        self.r.delete("fence:{warm-up}")
        self.scripts_are_known = True

    def _server_us(self) -> float:
        seconds, microseconds = self.r.time()
        return float(seconds * 10**6 + microseconds)
