"""What a fence guard is to a database, whichever it is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import names_digest

# Every refusal begins with it; on SQLite it also marks the triggers that are ours.
MESSAGE_PREFIX = "fence guard on "

# PostgreSQL cuts names at 63 bytes, silently.
_LONGEST_NAME = 63

_QUALIFIED = re.compile(r"""(?P<quote>["`])(?P<schema>.+)(?P=quote)\.(?P=quote)(?P<table>.+)(?P=quote)""")


@dataclass(frozen=True)
class Trigger:
    """One guard in the words of the database; ``column`` is None once the column has been removed."""

    name: str
    table: str
    column: str | None
    strict: bool
    nullable: bool = False

    @property
    def bare_table(self) -> str:
        """The table without its schema and quotes."""
        return _split(self.table)[1]

    def in_schema(self, quoted_name: str) -> str:
        """Put a name into the schema of the table, where the model names one."""
        return _split(self.table)[0] + quoted_name


def default_name(table: str) -> str:
    """Return the name of a guard of this table, short enough for every database."""
    name = f"{_split(table)[1]}_fence_guard"
    return name if len(name.encode()) <= _LONGEST_NAME else f"fence_guard_{names_digest(table, length=16)}"


def checked_name(name: str) -> str:
    """Return the name of a guard, or raise ValueError if a database would cut it."""
    if not name or len(name.encode()) > _LONGEST_NAME:
        raise ValueError(f"the name of a fence guard takes 1 to {_LONGEST_NAME} bytes; got {name!r}")
    return name


class Triggers(ABC):
    """What a database can do with guards."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._quote = connection.ops.quote_name

    @abstractmethod
    def create(self, trigger: Trigger) -> list[str]:
        """Return the statements that make the guard."""

    @abstractmethod
    def drop(self, trigger: Trigger) -> list[str]:
        """Return the statements that drop the guard; it may be gone already, with a table that was rebuilt."""

    def shown(self, statement: str) -> list[str]:
        """Return the lines of ``sqlmigrate`` for a statement."""
        return [statement + ";"]

    @abstractmethod
    def has_table(self, trigger: Trigger) -> bool:
        """Say whether the table exists."""

    @abstractmethod
    def definition(self, trigger: Trigger) -> str | None:
        """Return the part of the guard that the database keeps word for word; None if it has no such guard."""

    @abstractmethod
    def expected_definition(self, trigger: Trigger) -> str:
        """Return what ``definition`` should be."""

    def is_current(self, trigger: Trigger) -> bool:
        """Say whether the guard is there and is what this version makes of it."""
        definition = self.definition(trigger)
        return definition is not None and definition.split() == self.expected_definition(trigger).split()

    @abstractmethod
    def lifted(self) -> AbstractContextManager[None]:
        """Run the block as one transaction in which no guard of the database refuses this connection."""

    def _rows(self, sql: str, parameters: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def _value(self, sql: str, parameters: tuple[str, ...] = ()) -> Any:
        rows = self._rows(sql, parameters)
        return rows[0][0] if rows else None

    def _text(self, sql: str, parameters: tuple[str, ...]) -> str | None:
        value = self._value(sql, parameters)
        return value if value is None else str(value)

    def _run(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    def _condition(self, trigger: Trigger) -> str:
        """Return the condition under which an UPDATE is refused; an empty token is smaller than any."""
        column = self._quote(trigger.column or "")
        new, old = (
            f"COALESCE({row}.{column}, -1)" if trigger.nullable else f"{row}.{column}" for row in ("NEW", "OLD")
        )
        return f"{new} {'<=' if trigger.strict else '<'} {old}"


def literal(text: str) -> str:
    """Quote a string for SQL; nothing here comes from outside the migrations."""
    return "'" + text.replace("'", "''") + "'"


def _split(table: str) -> tuple[str, str]:
    """Split a ``db_table`` into its schema, quoted and with the dot, and the table without quotes."""
    match = _QUALIFIED.fullmatch(table)
    if match is None:
        return "", table.strip('"`')
    quote = match["quote"]
    return f"{quote}{match['schema']}{quote}.", match["table"]
