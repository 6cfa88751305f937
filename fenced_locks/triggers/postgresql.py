"""Fence guards on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from .base import MESSAGE_PREFIX, Trigger, Triggers, literal


class PostgresTriggers(Triggers):
    """
    A trigger with its condition in ``WHEN``, and a function that refuses, unless the guards are lifted.

    The condition is cheaper there than in the function, the more so the shorter it is, and it follows a column that
    is renamed. BEFORE, because an UPDATE that moves a row to another partition runs no AFTER UPDATE trigger.
    """

    def create(self, trigger: Trigger) -> list[str]:
        """Return the statements for the function, which a dropped table may have left behind, and for the trigger."""
        function = trigger.in_schema(self._quote(trigger.name))
        return [
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$fence_guard${self.expected_definition(trigger)}$fence_guard$",
            f"CREATE TRIGGER {self._quote(trigger.name)} BEFORE UPDATE ON {self._quote(trigger.table)} FOR EACH ROW\n"
            f"WHEN ({self._condition(trigger)})\nEXECUTE FUNCTION {function}()",
        ]

    def drop(self, trigger: Trigger) -> list[str]:
        """Return the statements for the trigger and its function."""
        name = self._quote(trigger.name)
        return [
            f"DROP TRIGGER IF EXISTS {name} ON {self._quote(trigger.table)}",
            f"DROP FUNCTION IF EXISTS {trigger.in_schema(name)}()",
        ]

    def has_table(self, trigger: Trigger) -> bool:
        """Look along the search path, as the statements do."""
        return bool(self._value("SELECT to_regclass(%s) IS NOT NULL", (self._quote(trigger.table),)))

    def definition(self, trigger: Trigger) -> str | None:
        """Return the text of the function, if an enabled trigger of that name calls it."""
        sql = (
            "SELECT p.prosrc FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid "
            "WHERE t.tgrelid = to_regclass(%s) AND t.tgname = %s AND t.tgenabled IN ('O', 'A')"
        )
        return self._text(sql, (self._quote(trigger.table), trigger.name))

    def expected_definition(self, trigger: Trigger) -> str:
        """Return the text of the function, in which a column that was renamed since is empty, no error."""
        column = literal(trigger.column or "")
        strict = ",\n        HINT = 'The guard is strict: every UPDATE must raise the token.'" if trigger.strict else ""
        # What WHEN says about it is not kept word for word.
        empty = "\n    -- An empty token is smaller than any." if trigger.nullable else ""
        return f"""
BEGIN{empty}
    IF current_setting('fenced_locks.unguarded', true) = 'on' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'check_violation',
        SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = {column}, CONSTRAINT = TG_NAME,
        MESSAGE = format('{MESSAGE_PREFIX}%s: token %s is refused, the row carries %s', TG_TABLE_NAME,
            to_jsonb(NEW) ->> {column}, to_jsonb(OLD) ->> {column}){strict};
END
"""

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Set a parameter for the transaction; a rollback takes it back."""
        with transaction.atomic(using=self._connection.alias):
            outermost = self._value("SELECT current_setting('fenced_locks.unguarded', true)") != "on"
            if outermost:
                self._run("SELECT set_config('fenced_locks.unguarded', 'on', true)")
            yield
            if outermost and not self._connection.needs_rollback:
                self._run("SELECT set_config('fenced_locks.unguarded', '', true)")
