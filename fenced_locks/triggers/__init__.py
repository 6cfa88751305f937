"""The SQL of a fence guard, a row trigger: one module per kind of database."""

from __future__ import annotations

from django.db import NotSupportedError
from django.db.backends.base.base import BaseDatabaseWrapper

from .base import MESSAGE_PREFIX, Trigger, Triggers, checked_name, default_name
from .mysql import MySQLTriggers
from .postgresql import PostgresTriggers
from .sqlite import SQLiteTriggers

__all__ = [
    "MESSAGE_PREFIX",
    "Trigger",
    "Triggers",
    "can_guard",
    "checked_name",
    "default_name",
    "triggers_for",
]

_BY_VENDOR: dict[str, type[Triggers]] = {
    "postgresql": PostgresTriggers,
    "mysql": MySQLTriggers,
    "sqlite": SQLiteTriggers,
}


def can_guard(connection: BaseDatabaseWrapper) -> bool:
    """Say whether there are guards for this kind of database."""
    return connection.vendor in _BY_VENDOR


def triggers_for(connection: BaseDatabaseWrapper) -> Triggers:
    """Return what this database can do with guards, or raise NotSupportedError."""
    if not can_guard(connection):
        raise NotSupportedError(f"there is no fence guard for {connection.vendor}")
    return _BY_VENDOR[connection.vendor](connection)
