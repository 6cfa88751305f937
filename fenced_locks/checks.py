"""System checks, one function per concern. An id is never used for anything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from .conf import conf
from .connections import get_client
from .guards import missing_guards, promised_guards
from .registered import registered
from .shortcuts import configured_issuer
from .triggers import can_guard

TAG = "fenced_locks"

# MySQLdb.constants.CLIENT.FOUND_ROWS: no driver is needed to look at settings.
_FOUND_ROWS = 2


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Every key of ``FENCED_LOCKS`` must be known and its value usable (fenced_locks.E001)."""
    return [Error(message, hint=hint, id="fenced_locks.E001") for message, hint in conf.problems()]


def check_alias(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """The cache alias must exist and have a Redis client (fenced_locks.E002); no server is asked."""
    if any(conf.problems()):
        return []
    try:
        get_client()
    except ImproperlyConfigured as error:
        hint = "Set FENCED_LOCKS['USING'] to an alias in CACHES that uses django-redis or Django's own Redis backend."
        return [Error(f"{error}.", hint=hint, id="fenced_locks.E002")]
    return []


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


def check_models(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Models in ``MODELS`` must have a ``fence_token``, and the fields that name a resource (fenced_locks.E020)."""
    if any(conf.problems()):
        return []
    hint = "Name a model that inherits from FencedModel, and fields of it: {'shop.Order': 'order:<pk>'}."
    return [Error(f"{error}.", hint=hint, id="fenced_locks.E020") for error in _unusable_models()]


def _unusable_models() -> Iterator[ImproperlyConfigured]:
    for label, text in conf.MODELS.items():
        try:
            registered(label, text)
        except ImproperlyConfigured as error:
            yield error


def check_guards(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """
    Each fence guard that the applied migrations promise must be in the database (fenced_locks.W010).

    Only where databases are named, by ``check --database`` and ``migrate``: they are asked.
    """
    return [
        CheckWarning(
            f"The fence guard '{trigger.name}' on table '{trigger.bare_table}', which the migrations promise, is "
            f"missing in database '{alias}', or is another one.",
            hint=f"Put it back with 'manage.py migrate --database {alias}'.",
            id="fenced_locks.W010",
        )
        for alias in databases or ()
        for trigger in missing_guards(connections[alias])
    ]


def check_strict_guards(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A strict guard excludes writes with ``repeatable=True`` (fenced_locks.I011); asked where databases are named."""
    return [
        Info(
            f"The fence guard '{trigger.name}' on table '{trigger.bare_table}' of database '{alias}' is strict: writes "
            "with repeatable=True are refused there.",
            hint="Use AddFenceGuard without strict=True if a holder writes a row more than once.",
            id="fenced_locks.I011",
        )
        for alias in databases or ()
        if can_guard(connections[alias])
        for trigger in promised_guards(connections[alias])
        if trigger.strict
    ]


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
