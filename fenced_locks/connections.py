"""Clients for a cache alias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection

from .conf import conf

if TYPE_CHECKING:
    from redis import Redis


def get_client(using: str | None = None) -> Redis:
    """
    Return the Redis client behind a cache alias, on the server that takes writes.

    Args:
        using: A key of ``CACHES``; by default ``FENCED_LOCKS["USING"]``. The backend is django-redis or Django's own.

    Raises:
        ImproperlyConfigured: No such alias, or its backend has no Redis client.
    """
    alias = conf.USING if using is None else using
    try:
        backend = caches[alias]
        if isinstance(backend, RedisCache):
            # get_redis_connection refuses Django's own backend.
            return cast("Redis", cast("Any", backend)._cache.get_client(write=True))
        return cast("Redis", get_redis_connection(alias))
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(f"cache alias {alias!r} for locks cannot be used: {error}") from error
    except ImproperlyConfigured:
        raise
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ImproperlyConfigured(f"cache alias {alias!r} for locks cannot be used: {reason}") from error
    except NotImplementedError:
        # What get_redis_connection raises for the backends of other caches.
        kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
        raise ImproperlyConfigured(
            f"cache alias {alias!r} cannot keep locks: its backend {kind} has no Redis client; "
            "use django_redis.cache.RedisCache or django.core.cache.backends.redis.RedisCache"
        ) from None
