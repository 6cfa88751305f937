"""Clients for a cache alias: blocking ones, and for each event loop one of its own."""

from __future__ import annotations

import re
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from redis.exceptions import RedisClusterException

from .async_clients import NoCounterpart, close, counterpart
from .conf import conf
from .loops import of_this_loop

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis


class UnsuitableClient(ImproperlyConfigured):
    """The client class of a cache alias cannot keep locks."""


class UnsuitableAlias(ImproperlyConfigured):
    """No cache has this alias, or its backend has no Redis client."""


def get_client(using: str | None = None) -> Redis:
    """
    Return the Redis client behind a cache alias, on the server that takes writes.

    Args:
        using: A key of ``CACHES``; by default ``FENCED_LOCKS["USING"]``. The backend is django-redis or Django's own.

    Raises:
        ImproperlyConfigured: No such alias, or its backend has no Redis client.
    """
    alias = conf.USING if using is None else using
    if alias not in settings.CACHES:
        known = ", ".join(map(repr, settings.CACHES))
        raise UnsuitableAlias(f"cache alias {alias!r} for locks is not in CACHES, which has {known}")
    try:
        backend = caches[alias]
        if isinstance(backend, RedisCache):
            # get_redis_connection refuses Django's own backend.
            return cast("Redis", cast("Any", backend)._cache.get_client(write=True))
        return cast("Redis", get_redis_connection(alias))
    except (InvalidCacheBackendError, ImproperlyConfigured) as error:
        raise ImproperlyConfigured(f"cache alias {alias!r} for locks cannot be used: {error}") from error
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ValueError) and not _has_valid_urls(alias):
            # Without the error itself: it quotes a part of the address, which may be one of the password.
            raise ImproperlyConfigured(
                f"cache alias {alias!r} for locks cannot be used: its LOCATION is no valid URL; special characters "
                "in the password, such as '/' and '#', must be percent-encoded"
            ) from None
        reason = f"{type(error).__name__}: {error}"
        raise ImproperlyConfigured(f"cache alias {alias!r} for locks cannot be used: {reason}") from error
    except NotImplementedError:
        # What get_redis_connection raises for the backends of other caches, and a client of several servers for itself.
        if hasattr(backend, "client"):
            kind = f"{type(backend.client).__module__}.{type(backend.client).__qualname__}"
            raise UnsuitableClient(
                f"cache alias {alias!r} cannot keep locks: its client class {kind} has no single server"
            ) from None
        kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
        raise UnsuitableAlias(
            f"cache alias {alias!r} cannot keep locks: its backend {kind} has no Redis client; "
            "use django_redis.cache.RedisCache or django.core.cache.backends.redis.RedisCache"
        ) from None


def _has_valid_urls(alias: str) -> bool:
    location = settings.CACHES[alias].get("LOCATION") or ""
    try:
        for url in re.split("[;,]", location) if isinstance(location, str) else location:
            _ = urlsplit(str(url)).port
    except ValueError:
        return False
    return True


def get_single_client(using: str | None = None) -> Redis:
    """
    Return the client as ``get_client`` does, for those who read all that a server has.

    Raises:
        ImproperlyConfigured: As ``get_client``; or the client does not block, cannot be made, or has no single server.
    """
    alias = conf.USING if using is None else using
    try:
        client = get_client(alias)
    except RedisClusterException as error:
        reason = str(error).splitlines()[0]
        raise UnsuitableClient(f"cache alias {alias!r} cannot be read: its client cannot be made: {reason}") from error
    kind = f"{type(client).__module__}.{type(client).__qualname__}"
    if iscoroutinefunction(client.execute_command):
        raise UnsuitableClient(f"cache alias {alias!r} cannot be read: its client {kind} does not block")
    if not hasattr(getattr(client, "connection_pool", None), "connection_class"):
        raise UnsuitableClient(f"cache alias {alias!r} cannot be read: its client {kind} has no single server")
    return client


def get_async_client(using: str | None = None) -> AsyncRedis:
    """
    Return the asyncio client of the running event loop for a cache alias; it is closed with the loop.

    Address, credentials, TLS, sentinels and all other settings are those of ``get_client``.

    Args:
        using: A key of ``CACHES``; by default ``FENCED_LOCKS["USING"]``. The backend is django-redis or Django's own.

    Raises:
        ImproperlyConfigured: No such alias, its backend has no Redis client, or one that connects in a way that
            ``redis.asyncio`` cannot.
        RuntimeError: No event loop is running.
    """
    alias = conf.USING if using is None else using
    # Other settings, as a test overrides them, are another dict.
    cache = settings.CACHES.get(alias)
    return of_this_loop((alias, id(cache)), lambda _: _LoopClient(alias, cache)).client


class _LoopClient:
    def __init__(self, alias: str, cache: object) -> None:
        # Kept, so that no other has its id.
        self._cache = cache
        try:
            self.client = counterpart(get_client(alias))
        except NoCounterpart as error:
            raise ImproperlyConfigured(f"cache alias {alias!r} cannot keep async locks: {error}") from error

    async def close(self) -> None:
        await close(self.client)

    def abandon(self) -> None:
        pass
