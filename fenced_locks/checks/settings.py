"""Checks that look at settings and ask no server."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisClusterException, RedisError

from ..conf import conf
from ..connections import UnsuitableAlias, UnsuitableClient, get_client
from ..shortcuts import configured_issuer

if TYPE_CHECKING:
    from redis import Redis

# MySQLdb.constants.CLIENT.FOUND_ROWS: no driver is needed to look at settings.
_FOUND_ROWS = 2


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Every key of ``FENCED_LOCKS`` must be known and its value usable (fenced_locks.E001)."""
    return [Error(message, hint=hint, id="fenced_locks.E001") for message, hint in conf.problems()]


def check_alias(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """The cache alias must exist and have a Redis client (fenced_locks.E002); no server is asked."""
    if any(conf.problems()):
        return []
    client = client_or_reason()
    if not isinstance(client, ImproperlyConfigured) or isinstance(client, UnsuitableClient):
        return []
    if isinstance(client, UnsuitableAlias):
        hint = "Set FENCED_LOCKS['USING'] to an alias in CACHES that uses django-redis or Django's own Redis backend."
    else:
        hint = f"Look at BACKEND, LOCATION and OPTIONS of CACHES[{conf.USING!r}]."
    return [Error(f"{str(client).rstrip('.')}.", hint=hint, id="fenced_locks.E002")]


def check_client(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """The client class of the cache alias must be able to keep locks (fenced_locks.E005); no server is asked."""
    if any(conf.problems()):
        return []
    client = client_or_reason()
    if isinstance(client, RedisClusterException):
        reason = f"cache alias {conf.USING!r} cannot keep locks: its client cannot be made: {client}".splitlines()[0]
    elif isinstance(client, UnsuitableClient):
        reason = str(client)
    elif not isinstance(client, Exception) and iscoroutinefunction(client.execute_command):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        reason = f"cache alias {conf.USING!r} cannot keep locks: its client {kind} does not block"
    else:
        return []
    hint = (
        "Leave CLIENT_CLASS and REDIS_CLIENT_CLASS out of its OPTIONS, or give the locks an alias of their own. Async "
        "locks have an async client made for them."
    )
    return [Error(f"{reason.rstrip('.')}.", hint=hint, id="fenced_locks.E005")]


def client_or_reason(using: str | None = None) -> Redis | Exception:
    """Return the client of an alias, that of the locks if none is named, or why there is none."""
    try:
        # Some kinds connect when they are made.
        return get_client(using)
    except (ImproperlyConfigured, RedisError, RedisClusterException) as error:
        return error


def check_issuer(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """The issuer must be one (fenced_locks.E003)."""
    if any(conf.problems()):
        return []
    try:
        configured_issuer()
    except ImproperlyConfigured as error:
        hint = (
            "Use 'clock', 'counter', 'database', or the dotted path of a subclass of "
            "fenced_locks.issuers.RedisIssuer or fenced_locks.issuers.ExternalIssuer."
        )
        return [Error(f"{error}.", hint=hint, id="fenced_locks.E003")]
    return []


def check_found_rows(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """MySQL and MariaDB must report the rows that matched, not those that became different (fenced_locks.W004)."""
    return [
        CheckWarning(
            f"DATABASES[{alias!r}]['OPTIONS']['client_flag'] drops the flag FOUND_ROWS that Django sets: fenced writes "
            "that change no value are reported as refused.",
            hint="Add MySQLdb.constants.CLIENT.FOUND_ROWS to the flags.",
            id="fenced_locks.W004",
        )
        for alias, database in settings.DATABASES.items()
        if _drops_found_rows(database)
    ]


def _drops_found_rows(database: dict[str, Any]) -> bool:
    if database.get("ENGINE", "").rpartition(".")[2] != "mysql":
        return False
    flags = (database.get("OPTIONS") or {}).get("client_flag")
    return flags is not None and not flags & _FOUND_ROWS
