"""Fence guards on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from .base import MESSAGE_PREFIX, Trigger, Triggers, literal


class SQLiteTriggers(Triggers):
    """
    A trigger whose message is fixed: SQLite before 3.47 takes no expression there.

    A newer one would, but the file could then not be opened with an older one any more.
    """

    def create(self, trigger: Trigger) -> list[str]:
        """Return the one statement, with a semicolon inside."""
        return [self.expected_definition(trigger)]

    def drop(self, trigger: Trigger) -> list[str]:
        """Return the one statement."""
        return [f"DROP TRIGGER IF EXISTS {self._quote(trigger.name)}"]

    def has_table(self, trigger: Trigger) -> bool:
        """Look into the main database."""
        return self._table_exists(trigger.bare_table)

    def definition(self, trigger: Trigger) -> str | None:
        """Return the statement that made the trigger; SQLite rewrites it when table or column are renamed."""
        sql = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s AND name = %s"
        return self._text(sql, (trigger.bare_table, trigger.name))

    def expected_definition(self, trigger: Trigger) -> str:
        """Return the statement."""
        # Nothing but an UPDATE of the column can lower it, as a trigger cannot change NEW here.
        column = "" if trigger.strict else f" OF {self._quote(trigger.column or '')}"
        row = "does not raise the token of the row" if trigger.strict else "lowers the token of the row"
        message = literal(f"{MESSAGE_PREFIX}{trigger.bare_table}: refused, the UPDATE {row}")
        return (
            f"CREATE TRIGGER {self._quote(trigger.name)} BEFORE UPDATE{column} ON {self._quote(trigger.table)} "
            f"FOR EACH ROW\nWHEN {self._condition(trigger)}\nBEGIN\n    SELECT RAISE(ABORT, {message});\nEND"
        )

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Drop the guards inside the transaction, which nobody else sees, and put them back at its end."""
        ours = (f"%RAISE(ABORT, '{MESSAGE_PREFIX}%",)
        # Before BEGIN: a transaction that reads first may be refused the write lock.
        sql = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' AND sql LIKE %s"
        found = self._rows(sql, ours)
        with transaction.atomic(using=self._connection.alias):
            for name, _, _ in found:
                self._run(f"DROP TRIGGER IF EXISTS {self._quote(name)}")
            yield
            if not self._connection.needs_rollback:
                self._put_back(found)

    def _put_back(self, found: list[Any]) -> None:
        for _, table, statement in found:
            if self._table_exists(table):
                self._run(statement)

    def _table_exists(self, table: str) -> bool:
        return self._value("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = %s", (table,)) is not None
