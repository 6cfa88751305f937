"""Fence guards on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, transaction

from .base import MESSAGE_PREFIX, Trigger, Triggers, literal


class MySQLTriggers(Triggers):
    """A trigger of MySQL or MariaDB; its name is unique in the schema, not only on the table."""

    def create(self, trigger: Trigger) -> list[str]:
        """Return the one statement, with semicolons inside."""
        name, table = trigger.in_schema(self._quote(trigger.name)), self._quote(trigger.table)
        head = f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW\n"
        return [head + self.expected_definition(trigger)]

    def drop(self, trigger: Trigger) -> list[str]:
        """Return the one statement."""
        return [f"DROP TRIGGER IF EXISTS {trigger.in_schema(self._quote(trigger.name))}"]

    def shown(self, statement: str) -> list[str]:
        """Return the statement as the command-line client of the server needs it."""
        if ";" in statement:
            return ["DELIMITER //", f"{statement}//", "DELIMITER ;"]
        return super().shown(statement)

    def has_table(self, trigger: Trigger) -> bool:
        """Look into the schema of the table, else that of the connection."""
        sql = (
            "SELECT 1 FROM information_schema.tables "
            "WHERE table_schema = COALESCE(NULLIF(%s, ''), DATABASE()) AND table_name = %s"
        )
        return self._value(sql, (self._schema(trigger), trigger.bare_table)) is not None

    def definition(self, trigger: Trigger) -> str | None:
        """Return the body of the trigger."""
        sql = (
            "SELECT action_statement FROM information_schema.triggers "
            "WHERE trigger_schema = COALESCE(NULLIF(%s, ''), DATABASE()) "
            "AND event_object_table = %s AND trigger_name = %s"
        )
        return self._text(sql, (self._schema(trigger), trigger.bare_table, trigger.name))

    def expected_definition(self, trigger: Trigger) -> str:
        """Return the body: BEFORE UPDATE also sees rows that would not change."""
        column = self._quote(trigger.column or "")
        # Django makes an IntegrityError of these two numbers, those of a violated CHECK, and no other of a SIGNAL.
        number = 4025 if getattr(self._connection, "mysql_is_mariadb", False) else 3819
        start = literal(f"{MESSAGE_PREFIX}{trigger.bare_table}: token ").replace("\\", "\\\\")
        return f"""BEGIN
    IF {self._condition(trigger)} AND @fenced_locks_unguarded IS NULL THEN
        BEGIN
            DECLARE refusal VARCHAR(128) CHARACTER SET utf8mb4 DEFAULT LEFT(CONCAT({start}, COALESCE(NEW.{column}, ''),
                ' is refused, the row carries ', COALESCE(OLD.{column}, '')), 128);
            SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = refusal;
        END;
    END IF;
END"""

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Set a variable of the session; no rollback takes it back."""
        outermost = self._value("SELECT @fenced_locks_unguarded") is None
        if outermost:
            self._run("SET @fenced_locks_unguarded = 1")
        try:
            with transaction.atomic(using=self._connection.alias):
                yield
        finally:
            if outermost:
                self._unset()

    def _unset(self) -> None:
        raw = self._connection.connection
        if raw is None:
            return  # The session has ended, and its variables with it.
        try:
            # Django's own cursor refuses to work in a transaction that must be rolled back.
            with self._connection.wrap_database_errors, raw.cursor() as cursor:
                cursor.execute("SET @fenced_locks_unguarded = NULL")
        except Error:
            self._connection.close()

    @staticmethod
    def _schema(trigger: Trigger) -> str:
        return trigger.in_schema("").strip("`.")
