"""
A client of ``redis.asyncio`` that connects as a given blocking one does.

The settings of a cache say how to make the blocking one; what came out of them is translated, so that they are read in
one way only.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import redis
from redis import _parsers as parsers
from redis import asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.asyncio.retry import Retry

_CONNECTIONS: dict[Any, Any] = {
    redis.Connection: aioredis.Connection,
    redis.SSLConnection: aioredis.SSLConnection,
    redis.UnixDomainSocketConnection: aioredis.UnixDomainSocketConnection,
    sentinel.SentinelManagedConnection: aiosentinel.SentinelManagedConnection,
    sentinel.SentinelManagedSSLConnection: aiosentinel.SentinelManagedSSLConnection,
}
# Any other gives way to redis-py's choice: replies are the same.
_PARSERS: dict[Any, Any] = {
    parsers._RESP2Parser: parsers._AsyncRESP2Parser,
    parsers._RESP3Parser: parsers._AsyncRESP3Parser,
    parsers._HiredisParser: parsers._AsyncHiredisParser,
}
# What a blocking pool gives to its connections for reasons of its own.
_OWN = (
    "command_packer",
    "connection_pool",
    "event_dispatcher",
    "himport_registry",
    "maint_notifications_pool_handler",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
)


class NoCounterpart(Exception):
    """Something of the blocking client that ``redis.asyncio`` has not; the message says what."""


def counterpart(client: Any) -> aioredis.Redis:
    """
    Return a new asyncio client of the same server, with a pool of its own.

    Raises:
        NoCounterpart: It connects in a way that an asyncio client cannot.
    """
    pool = getattr(client, "connection_pool", None)
    if not isinstance(pool, redis.ConnectionPool):
        raise NoCounterpart(f"its client {type(client).__qualname__} has no pool of connections")
    return aioredis.Redis(connection_pool=_pool(pool))


async def close(client: aioredis.Redis) -> None:
    """Close what ``counterpart`` made."""
    pool: Any = client.connection_pool
    await client.aclose()
    await pool.aclose()
    if isinstance(pool, aiosentinel.SentinelConnectionPool):
        for watcher in pool.sentinel_manager.sentinels:
            await watcher.aclose()


def _pool(pool: Any) -> aioredis.ConnectionPool:
    make = _CONNECTIONS.get(pool.connection_class) or _fake(pool.connection_class)
    if make is None:
        raise NoCounterpart(
            f"redis.asyncio has no counterpart of its connections, {pool.connection_class.__qualname__}"
        )
    settings = _translated(pool.connection_kwargs, _arguments(make))
    settings |= {"connection_class": make, "max_connections": pool.max_connections}
    if isinstance(pool, sentinel.SentinelConnectionPool):
        make_pool: Any = aiosentinel.SentinelConnectionPool
        managed: aioredis.ConnectionPool = make_pool(
            pool.service_name,
            _sentinel(pool.sentinel_manager),
            is_master=pool.is_master,
            check_connection=pool.check_connection,
            **settings,
        )
        return managed
    if isinstance(pool, redis.BlockingConnectionPool):
        return aioredis.BlockingConnectionPool(timeout=pool.timeout, **settings)
    return aioredis.ConnectionPool(**settings)


def _fake(make: Any) -> Any:
    """Return the counterpart of a connection of ``fakeredis``; whoever has one has imported that."""
    fakeredis: Any = sys.modules.get("fakeredis")
    if fakeredis is None or make is not getattr(fakeredis, "FakeRedisConnection", None):
        return None
    return fakeredis.FakeAsyncRedisConnection


def _sentinel(manager: Any) -> Any:
    make: Any = aiosentinel.Sentinel
    watchers = [watcher.get_connection_kwargs() for watcher in manager.sentinels]
    settings: dict[str, Any] = {"min_other_sentinels": manager.min_other_sentinels}
    if manager._force_master_ip is not None:
        if "force_master_ip" not in _arguments(make):
            raise NoCounterpart("this version of redis.asyncio knows no 'force_master_ip'")
        settings["force_master_ip"] = manager._force_master_ip
    return make(
        [(watcher["host"], watcher["port"]) for watcher in watchers],
        sentinel_kwargs=_translated(manager.sentinel_kwargs, _arguments(aioredis.Redis)),
        **settings,
    )


def _translated(settings: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    translated = {}
    for name, value in settings.items():
        if name in _OWN or (name == "parser_class" and value not in _PARSERS):
            continue
        if name not in known or name == "redis_connect_func":
            # Notifications of maintenance are a convenience that older versions have for blocking clients only.
            if value and name != "maint_notifications_config":
                raise NoCounterpart(f"connections of redis.asyncio cannot have {name!r}")
            continue
        translated[name] = _value(name, value)
    return translated


def _value(name: str, value: Any) -> Any:
    if name == "parser_class":
        return _PARSERS[value]
    if name == "retry" and value is not None:
        return Retry(value._backoff, value._retries, tuple(value._supported_errors))
    # redis-py writes into the one that it is given.
    return list(value) if name == "retry_on_error" and value is not None else value


@cache
def _arguments(kind: type) -> frozenset[str]:
    """Return the names of all arguments that a class takes, those of its bases included."""
    inits = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base) and base is not object]
    return frozenset(name for init in inits for name in inspect.signature(init).parameters) - {"self", "kwargs"}
