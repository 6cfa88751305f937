"""
Checks that ask the Redis server of the locks, and stay silent until somebody wants that.

``check_servers`` asks, once, over one connection; each concern then looks at the answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import iscoroutinefunction
from types import FrameType
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Info
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError

from ..conf import conf
from ..issuers import AnyIssuer
from ..shortcuts import configured_issuer
from . import TAG
from .asking import CannotAsk, within
from .clocks import clocks_apart
from .keeping import emptied_by_a_cache, evicted, expiring_counters, not_persisted
from .server import Server, asked
from .settings import client_or_reason

# From here on Redis knows SET … KEEPTTL and lets BLPOP wait for a fraction of a second.
OLDEST_REDIS = (6, 0)
# A time-out must leave room for a reply that takes longer than usual.
_TIMES_USUAL = 3
# Seconds for all that is asked.
_AT_MOST = 10.0

Concern = Callable[[Server], Iterable[CheckMessage]]


def check_servers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Ask the server of the locks (fenced_locks.W020 if it cannot be asked) and look at each concern."""
    if any(conf.problems()):
        return []
    client = client_or_reason()
    if isinstance(client, RedisError):
        return [*lease_without_end(), _cannot(str(client))]
    try:
        issuer = configured_issuer()
    except ImproperlyConfigured:
        return []
    if isinstance(client, Exception) or iscoroutinefunction(client.execute_command):
        # Another check says so, as it does of an issuer that is none.
        return []
    if not hasattr(getattr(client, "connection_pool", None), "connection_class"):
        return [*lease_without_end(), _cannot("its client has no single server")]
    try:
        return [*lease_without_end(), *within(_AT_MOST, lambda: _look(conf.USING, client, issuer))]
    except CannotAsk as error:
        return [*lease_without_end(), _cannot(str(error))]


def _look(alias: str, client: Any, issuer: AnyIssuer) -> list[CheckMessage]:
    with asked(alias, client, issuer) as server:
        return [message for concern in CONCERNS for message in concern(server)]


def check_servers_when_named(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """The same, where Django was asked for our tag: a plain ``check`` must ask no server."""
    return check_servers(app_configs, **kwargs) if _is_tag_named(sys._getframe()) else []


def _is_tag_named(frame: FrameType | None) -> bool:
    # Django tells a check which databases were named, not which tags.
    while frame is not None and frame.f_code.co_name != "run_checks":
        frame = frame.f_back
    return frame is not None and TAG in (frame.f_locals.get("tags") or ())


def _cannot(reason: str) -> CheckMessage:
    return CheckWarning(
        f"The Redis server of cache alias {conf.USING!r}, which keeps the locks, cannot be asked: {reason}.",
        hint="No lock can be taken until it can be reached: look at LOCATION and OPTIONS of that alias.",
        id="fenced_locks.W020",
    )


def lease_without_end() -> Iterable[CheckMessage]:
    """The usual lease must have an end (fenced_locks.W027)."""
    if conf.TIMEOUT is None:
        yield CheckWarning(
            "FENCED_LOCKS['TIMEOUT'] is None: a process that dies keeps what it has locked for ever.",
            hint="Set a number of seconds, and RENEW to True for work that takes longer.",
            id="fenced_locks.W027",
        )


def too_old(server: Server) -> Iterable[CheckMessage]:
    """The server must know the commands of our scripts (fenced_locks.E026)."""
    version = server.info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        yield Error(
            f"The Redis server of cache alias {server.alias!r} is version {version}: locks need "
            f"{'.'.join(map(str, OLDEST_REDIS))} or newer.",
            hint="Use a newer Redis, or Valkey.",
            id="fenced_locks.E026",
        )


def impatient(server: Server) -> Iterable[CheckMessage]:
    """The client's time-out must be there, and leave room for the server's usual reply (fenced_locks.W028)."""
    limit = server.socket_timeout
    if limit is None:
        yield CheckWarning(
            f"Cache alias {server.alias!r} has no socket_timeout: where a reply gets lost, a lock waits for it until "
            "its own time is over, and the cache for ever.",
            hint="Set one of a few seconds in the OPTIONS of that alias.",
            id="fenced_locks.W028",
        )
    elif server.clock and limit < _TIMES_USUAL * server.clock.latency:
        yield CheckWarning(
            f"The socket_timeout of cache alias {server.alias!r} is {1000 * limit:.3g} ms, and a reply of its server "
            f"usually takes {1000 * server.clock.latency:.3g} ms: replies that come are taken for lost.",
            hint="Set a few seconds.",
            id="fenced_locks.W028",
        )


def unseen(server: Server) -> Iterable[CheckMessage]:
    """Say what could not be looked at (fenced_locks.I021), as on some managed services."""
    if server.unseen:
        what = "; ".join(f"{topic} ({reason})" for topic, reason in server.unseen.items())
        yield Info(
            f"The Redis server of cache alias {server.alias!r} does not let us look at: {what}.",
            hint="Look at these by hand, or allow the client's user +info, +time, +scan and +pttl.",
            id="fenced_locks.I021",
        )


CONCERNS: tuple[Concern, ...] = (
    too_old,
    evicted,
    not_persisted,
    expiring_counters,
    emptied_by_a_cache,
    clocks_apart,
    impatient,
    # The last: the others find out.
    unseen,
)
