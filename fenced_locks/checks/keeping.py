"""Whether the server keeps locks and counters as long as they are needed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.core.cache.backends.redis import RedisCache
from django.core.checks import CheckMessage
from django.core.checks import Warning as CheckWarning
from django_redis.client import DefaultClient

from ..conf import conf
from ..issuers import RedisIssuer
from ..keys import COUNTER_PREFIX, lock_name
from ..wire.lines import server_of
from .asking import CannotAsk, connection_like, line_to, read_info
from .server import Server
from .settings import client_or_reason

# What is looked at for counters with an expiry: a sample, not ten million keys.
_SCANS, _KEYS_PER_SCAN, _SCAN_SECONDS = 20, 1000, 1.0
_OTHER_SECONDS = 0.5


def evicted(server: Server) -> Iterable[CheckMessage]:
    """The server must not delete locks, nor counters that are needed, when its memory is full (fenced_locks.W022)."""
    policy = server.info.get("maxmemory_policy")
    if policy is None and server.info:
        server.unseen["maxmemory-policy"] = "INFO does not tell it"
    if policy is None or not policy.startswith(("allkeys-", "volatile-")):
        return
    unlimited = server.info.get("maxmemory") == "0"
    yield CheckWarning(
        f"maxmemory-policy of the Redis server of cache alias {server.alias!r} is '{policy}': when memory is full, it "
        f"deletes {_at_stake(server, policy)}."
        + (" There is no maxmemory now, so nothing is deleted yet." if unlimited else ""),
        hint="Set maxmemory-policy to noeviction, or give the locks a server of their own.",
        id="fenced_locks.W022",
    )


def _at_stake(server: Server, policy: str) -> str:
    locks = "locks that are held, so that somebody else gets in"
    name = server.issuer_name
    if not isinstance(server.issuer, RedisIssuer):
        return locks
    if server.issuer.starts_at_clock:
        return f"{locks} (it may delete the counters of the issuer {name!r}, which go on from the clock)"
    if policy.startswith("volatile-") and not server.issuer.retention_ms:
        return f"{locks} (the counters of the issuer {name!r} stay: they have no expiry)"
    return f"{locks}, and the counters of the issuer {name!r}, which then start again below the tokens of the rows"


def not_persisted(server: Server) -> Iterable[CheckMessage]:
    """Counters that are needed must be written to disk (fenced_locks.W023)."""
    if not server.needs_its_counters or not server.info:
        return
    if "aof_enabled" not in server.info:
        server.unseen["persistence"] = "INFO does not tell it"
    elif server.info["aof_enabled"] == "0":
        yield CheckWarning(
            f"The Redis server of cache alias {server.alias!r} has no append-only file: after a crash the counters of "
            f"the issuer {server.issuer_name!r} are those of the last snapshot, or gone, and tokens are issued again.",
            hint="Set appendonly to yes and appendfsync to always, or use the issuer 'clock' or 'database'.",
            id="fenced_locks.W023",
        )


def expiring_counters(server: Server) -> Iterable[CheckMessage]:
    """Counters that are needed must have no expiry (fenced_locks.W024); a sample of them is looked at."""
    if not isinstance(server.issuer, RedisIssuer) or not server.needs_its_counters or server.issuer.retention_ms:
        return
    counters, expiring = _sample(server)
    if expiring:
        yield CheckWarning(
            f"{len(expiring)} of the {counters} counters that were looked at expire, such as {expiring[0]!r}: its "
            f"resource then starts again at 1, but the issuer {server.issuer_name!r} needs its counters for ever.",
            hint="Take each of these locks once, or PERSIST the keys. The issuer 'clock' leaves them with an expiry.",
            id="fenced_locks.W024",
        )


def _sample(server: Server) -> tuple[int, list[str]]:
    """Return how many counters were looked at, and which of them expire."""
    counters, expiring, cursor, ends = 0, list[str](), b"0", time.monotonic() + _SCAN_SECONDS
    for _ in range(_SCANS):
        where = (b"MATCH", COUNTER_PREFIX.encode() + b"*", b"COUNT", b"%d" % _KEYS_PER_SCAN)
        (page,) = server.line.ask((b"SCAN", cursor, *where))
        found = [] if isinstance(page, Exception) else [key for key in page[1] if _is_counter(key)]
        ends_ms = server.line.ask(*[(b"PTTL", key) for key in found])
        if refusal := next((reply for reply in [page, *ends_ms] if isinstance(reply, Exception)), None):
            server.unseen["expiry of counters"] = str(refusal)
            break
        counters += len(found)
        expiring += [key.decode(errors="backslashreplace") for key, ms in zip(found, ends_ms, strict=True) if ms >= 0]
        cursor = page[0]
        if cursor == b"0" or time.monotonic() > ends:
            break
    return counters, expiring


def _is_counter(key: bytes) -> bool:
    name = lock_name(key.decode(errors="surrogateescape"))
    return name is not None and name.startswith(conf.KEY_PREFIX)


def emptied_by_a_cache(server: Server) -> Iterable[CheckMessage]:
    """The locks must not be in a database that ``cache.clear()`` empties (fenced_locks.W029)."""
    if sharing := [repr(alias) for alias in settings.CACHES if _clears(server, alias)]:
        yield CheckWarning(
            f"The locks are in the Redis database of the cache {' and of the cache '.join(sharing)}: cache.clear() "
            "empties it (FLUSHDB), and locks that are held and counters go with it.",
            hint="Give the locks a cache alias of their own, on another server or another database of this one, and "
            "name it in FENCED_LOCKS['USING'].",
            id="fenced_locks.W029",
        )


def _clears(server: Server, alias: str) -> bool:
    if alias == server.alias:
        # Any other is taken to be for the locks alone.
        if alias not in (DEFAULT_CACHE_ALIAS, settings.CACHE_MIDDLEWARE_ALIAS, settings.SESSION_CACHE_ALIAS):
            return False
        return _is_flushed(caches[alias])
    client = client_or_reason(alias)
    return not isinstance(client, Exception) and _is_flushed(caches[alias]) and _is_same_database(server, client)


def _is_flushed(cache: Any) -> bool:
    """Return whether ``clear()`` of this cache is FLUSHDB: a subclass may delete its own keys only."""
    kind = type(cache)
    if isinstance(cache, RedisCache):
        return kind.clear is RedisCache.clear
    client = type(getattr(cache, "client", None))
    return getattr(client, "clear", None) is DefaultClient.clear


def _is_same_database(server: Server, client: Any) -> bool:
    pool = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class"):
        return False
    ours, other = server_of(server.client.connection_pool), server_of(pool)
    if ours == other:
        return True
    if str(ours[-1]) != str(other[-1]):
        return False
    # One server has many addresses, but one run_id.
    try:
        with line_to(connection_like(client), _OTHER_SECONDS) as line:
            info = read_info(line)
    except CannotAsk:
        return False
    return not isinstance(info, Exception) and "run_id" in info and info["run_id"] == server.info.get("run_id")
