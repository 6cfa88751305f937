"""Clients and caches on ``fakeredis``: a server of each test's own, inside the process."""

from __future__ import annotations

import uuid
from typing import Any

import fakeredis


def fake_caches(host: str | None = None) -> dict[str, dict[str, Any]]:
    """Return both cache aliases of the tests, on one new fake server."""
    url = f"redis://{host or uuid.uuid4().hex}:6379/0"
    connection = fakeredis.FakeRedisConnection
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": url,
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"connection_class": connection}},
        },
        "plain": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": url,
            "OPTIONS": {"connection_class": connection},
        },
    }
