"""Names of each test's own: a prefix that nobody else has, whose keys are deleted afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import clock, keys
from ..arguments import checked_names
from ..conf import conf
from ..connections import get_client
from ..wire import wire_for
from .held import forget, leases_of


@contextmanager
def isolated_locks(*, using: Iterable[str] = ()) -> Iterator[None]:
    """
    Give all locks that are built from the settings names of this block's own; leave none of their keys behind.

    ``FENCED_LOCKS["KEY_PREFIX"]`` gets a random name before it, also where a test overrides the settings, so that tests
    that run at the same time, in whatever processes, do not meet. Afterwards every key with that name in it is deleted,
    leases that are still held are forgotten, and a clock that was moved goes back. Nothing is sent if no lock was used.

    Locks that you make from the classes have the names that you give them.

    Args:
        using: Cache aliases to clean up beside ``FENCED_LOCKS["USING"]`` and those that this thread has used.

    Raises:
        TypeError: ``using`` is no list of aliases.
        ImproperlyConfigured: One of ``using`` cannot keep locks.
    """
    isolation = Isolation(checked_names("using", using))
    before = conf.outer_prefix, clock.monotonic
    conf.outer_prefix = isolation.outer_prefix
    _active.append(isolation)
    try:
        yield
    finally:
        try:
            isolation.clean()
        finally:
            _active.remove(isolation)
            conf.outer_prefix, clock.monotonic = before


def lock_name(resource: str) -> str:
    """
    Return the name that the lock of a resource has now, with all prefixes: its key, and ``resource`` in errors.

    Raises:
        TypeError, ValueError: The resource is refused as a name.
    """
    return keys.keys_of(keys.lock_key(conf.KEY_PREFIX, resource), "utf-8").resource


class Isolation:
    """
    One block with names of its own.

    Attributes:
        prefix: What they begin with.
    """

    def __init__(self, using: Sequence[str]) -> None:
        for alias in using:
            get_client(alias)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        self.prefix = f"test-{worker}{os.urandom(8).hex()}:"
        self._using = using
        self._is_used = False

    def outer_prefix(self) -> str:
        """Return the prefix to whoever makes a name."""
        self._is_used = True
        return self.prefix

    def clients(self) -> Iterator[Any]:
        """Yield a client for each server that may have keys of this block."""
        servers = set()
        for alias in dict.fromkeys((conf.USING, *self._using, *_used_aliases())):
            try:
                client = get_client(alias)
            except ImproperlyConfigured:
                if alias in self._using:
                    raise
                continue
            server = wire_for(client).server
            if server not in servers:
                servers.add(server)
                yield client

    def locks(self, client: Any) -> list[bytes]:
        """Return the lock keys of this block on one server."""
        return [key for key in self._keys(client) if key.startswith(self.prefix.encode())]

    def clean(self) -> None:
        """Delete what this block has left, and forget the leases that it still holds."""
        if not self._is_used:
            return
        for client in self.clients():
            # A server that is down has no keys to delete.
            with suppress(RedisConnectionError, RedisTimeoutError):
                self._clean(client)

    def _clean(self, client: Any) -> None:
        for lease in leases_of([owner for key in self.locks(client) if (owner := owner_of(client, key))]):
            forget(lease)
        left = self._keys(client)
        if left:
            client.delete(*left)

    def _keys(self, client: Any) -> list[bytes]:
        found = client.scan_iter(match=f"*{self.prefix}*", count=1000)
        return [as_bytes(key) for key in found]


def owner_of(client: Any, key: str | bytes) -> bytes | None:
    """Return who has a lock, as it is stored; None for nobody, and for a key that is no lock."""
    try:
        stored = client.get(key)
    except ResponseError:
        return None
    return None if stored is None else as_bytes(stored)


def as_bytes(value: str | bytes) -> bytes:
    """Return a reply of any client as it came."""
    return value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)


def active(purpose: str) -> Isolation:
    """
    Return the innermost block.

    Raises:
        RuntimeError: There is none.
    """
    if not _active:
        raise RuntimeError(
            f"{purpose} needs locks of the test's own: use FencedLocksTestMixin, the fixture isolated_locks of the "
            "pytest plugin, or the context manager isolated_locks()"
        )
    return _active[-1]


def _used_aliases() -> list[str]:
    """Return the cache aliases that this thread has used: only those of its servers that can be reached, one hopes."""
    handler: Any = caches
    return [alias for alias in handler if hasattr(handler._connections, alias)]


_active: list[Isolation] = []
