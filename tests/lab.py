"""Migration operations one after the other on a real database, without files: what a guard is tried out on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connections, migrations, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from fenced_locks.fields import FenceTokenField
from fenced_locks.guards import is_guard_refusal, restore_guards
from fenced_locks.operations import AddFenceGuard

LABEL = "lab"

# DDL needs real transactions, and on SQLite none around it. Django cannot set up the others without "default".
DATABASES = [
    pytest.param(alias, marks=pytest.mark.django_db(transaction=True, databases=["default", alias]))
    for alias in ("default", "postgres", "mariadb")
]

_DROP_FUNCTIONS = """DO $$ DECLARE function regprocedure; BEGIN
    FOR function IN SELECT p.oid FROM pg_proc p LEFT JOIN pg_trigger t ON t.tgfoid = p.oid
        WHERE p.prosrc LIKE '%fence guard on%' AND t.oid IS NULL
    LOOP EXECUTE 'DROP FUNCTION ' || function; END LOOP;
END $$"""


class Lab:
    """The state of an app that exists in its migrations only; `clean` drops what they made."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.state = ProjectState()
        self._done: list[tuple[migrations.Migration, ProjectState]] = []

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of this thread."""
        return connections[self.using]

    def run(self, *operations: Operation) -> None:
        """Apply the operations as one migration."""
        migration = self._migration(operations)
        with self.connection.schema_editor(atomic=migration.atomic) as editor:
            after = migration.apply(self.state.clone(), editor)
        self._done.append((migration, self.state))
        self.state = after

    def back(self) -> None:
        """Unapply the last migration."""
        migration, self.state = self._done.pop()
        with self.connection.schema_editor(atomic=migration.atomic) as editor:
            migration.unapply(self.state.clone(), editor)

    def sql(self, *operations: Operation, backwards: bool = False) -> str:
        """Return what `sqlmigrate` prints for the operations; nothing is applied."""
        migration = self._migration(operations)
        with self.connection.schema_editor(collect_sql=True, atomic=migration.atomic) as editor:
            run = migration.unapply if backwards else migration.apply
            run(self.state.clone(), editor, collect_sql=True)
        return "\n".join(editor.collected_sql)

    def order(
        self, *fields: tuple[str, models.Field[Any, Any]], token: models.Field[Any, Any] | None = None, **options: Any
    ) -> None:
        """Make a table `Order` with a token, a status and what else is named."""
        self.run(
            migrations.CreateModel(
                "Order",
                [
                    ("id", models.BigAutoField(primary_key=True)),
                    ("fence_token", token or FenceTokenField()),
                    ("status", models.CharField(max_length=20, default="new")),
                    *fields,
                ],
                options=options,
            )
        )

    def rows(self, name: str = "Order") -> models.QuerySet[Any]:
        """Return all rows of a model as the migrations have it now."""
        return self.state.apps.get_model(LABEL, name)._base_manager.using(self.using).all()

    def after_migrate(self) -> None:
        """Do what `migrate` does when it is through."""
        restore_guards(using=self.using, apps=self.state.apps)

    def clean(self) -> None:
        """Drop every table, children first, and the functions that PostgreSQL keeps."""
        with self.connection.schema_editor() as editor:
            for model in sorted(self.state.apps.get_models(), key=lambda model: -len(model._meta.parents)):
                editor.delete_model(model)
        if self.connection.vendor == "postgresql":
            with self.connection.cursor() as cursor:
                cursor.execute(_DROP_FUNCTIONS)

    def _migration(self, operations: tuple[Operation, ...]) -> migrations.Migration:
        migration = migrations.Migration("0001_lab", LABEL)
        migration.operations = list(operations)
        return migration


def quoted(lab: Lab, name: str = "Order") -> str:
    """Return the table of a model for SQL."""
    return lab.connection.ops.quote_name(lab.rows(name).model._meta.db_table)


def refused(write: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Assert that a guard refuses the write; return what it says."""
    with pytest.raises(IntegrityError) as caught:
        write(*arguments, **named)
    assert is_guard_refusal(caught.value)
    return str(caught.value)


def traces(lab: Lab) -> list[str]:
    """Return the names of all triggers and functions of the test's own in the database."""
    sql = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name NOT LIKE 'guarded%'",
        "postgresql": "SELECT proname FROM pg_proc WHERE prosrc LIKE '%fence guard%' AND proname NOT LIKE 'guarded%'",
        "mysql": "SELECT trigger_name FROM information_schema.triggers "
        "WHERE trigger_schema = DATABASE() AND trigger_name NOT LIKE 'guarded%'",
    }[lab.connection.vendor]
    with lab.connection.cursor() as cursor:
        cursor.execute(sql)
        return [name for (name,) in cursor.fetchall()]


def lower(lab: Lab, name: str = "Order", column: str = "fence_token") -> int:
    """Write 4 over 10 by SQL."""
    column = lab.connection.ops.quote_name(column)
    with lab.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {quoted(lab, name)} SET {column} = 4 WHERE {column} = 10")
        return int(cursor.rowcount)


def guarded(lab: Lab, **options: Any) -> None:
    """Guard the table and put one row with token 10 into it."""
    lab.run(AddFenceGuard("order", **options))
    lab.rows().create(fence_token=10)
