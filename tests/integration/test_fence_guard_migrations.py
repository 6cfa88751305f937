"""A fence guard through a table's life: made, shown, reversed, renamed, rebuilt, dropped."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import DatabaseError, connections, migrations, models
from django.db.migrations.operations.base import Operation
from django.db.migrations.writer import OperationWriter
from django.test.utils import CaptureQueriesContext

from fenced_locks.fields import FenceTokenField
from fenced_locks.guards import guard_of
from fenced_locks.operations import AddFenceGuard, RemoveFenceGuard
from tests.lab import DATABASES, LABEL, Lab, quoted, refused


@pytest.fixture(params=DATABASES)
def using(request):
    return request.param


@pytest.fixture
def lab(using):
    lab = Lab(using)
    yield lab
    lab.clean()


def traces(lab):
    """Return the names of all triggers and functions of the test's own in the database."""
    sql = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%lab%'",
        "postgresql": "SELECT proname FROM pg_proc WHERE prosrc LIKE '%fence guard%' AND proname NOT LIKE 'guarded%'",
        "mysql": "SELECT trigger_name FROM information_schema.triggers "
        "WHERE trigger_schema = DATABASE() AND trigger_name NOT LIKE 'guarded%'",
    }[lab.connection.vendor]
    with lab.connection.cursor() as cursor:
        cursor.execute(sql)
        return [name for (name,) in cursor.fetchall()]


def lower(lab, name="Order", column="fence_token"):
    """Write 4 over 10 by SQL."""
    column = lab.connection.ops.quote_name(column)
    with lab.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {quoted(lab, name)} SET {column} = 4 WHERE {column} = 10")
        return cursor.rowcount


def guarded(lab, **options):
    lab.run(AddFenceGuard("order", **options))
    lab.rows().create(fence_token=10)


def test_a_table_with_rows_can_be_guarded_and_the_guard_taken_back(lab):
    lab.order()
    lab.rows().create(fence_token=10)
    lab.run(AddFenceGuard("Order"))
    refused(lower, lab)
    lab.back()
    assert lower(lab) == 1
    assert traces(lab) == []


@pytest.mark.parametrize("strict", [False, True])
def test_a_removed_guard_comes_back_as_it_was(lab, strict):
    lab.order()
    guarded(lab, strict=strict)
    lab.run(RemoveFenceGuard("Order"))
    assert traces(lab) == []
    assert lab.rows().update(fence_token=10) == 1
    lab.back()
    refused(lower, lab)
    if strict:
        refused(lab.rows().update, fence_token=10)
    else:
        assert lab.rows().update(fence_token=10) == 1


def test_the_trigger_is_named_after_its_table_or_as_one_likes(lab):
    lab.order()
    guarded(lab)
    assert traces(lab) == ["lab_order_fence_guard"]
    lab.back()
    guarded(lab, name="never_back")
    assert traces(lab) == ["never_back"]


def run_as_a_person_would(lab, sql):
    """Feed the output of `sqlmigrate` to the database's own client."""
    if lab.connection.vendor == "sqlite":
        lab.connection.connection.executescript(sql)
    elif lab.connection.vendor == "postgresql":
        with lab.connection.cursor() as cursor:
            cursor.execute(sql)
    else:
        settings = lab.connection.settings_dict
        command = [shutil.which("mariadb") or "mysql", "--no-defaults", f"--user={settings['USER']}"]
        subprocess.run([*command, f"--socket={settings['HOST']}", settings["NAME"]], input=sql, text=True, check=True)


def test_sqlmigrate_shows_what_makes_the_guard_and_what_drops_it(lab):
    lab.order()
    lab.rows().create(fence_token=10)
    run_as_a_person_would(lab, lab.sql(AddFenceGuard("order")))
    refused(lower, lab)
    run_as_a_person_would(lab, lab.sql(AddFenceGuard("order"), backwards=True))
    assert traces(lab) == []


NAMES = {
    "spaces": "an order",
    "quotes of a string": "o'rder",
    "backslash": "back\\slash",
    "keyword": "select",
    "capitals": "Order_Table",
    "not ascii": "bestellung_größe_заказ",
    "long": "a_table_with_a_name_that_is_as_long_as_any_database_will_take",
}


@pytest.mark.parametrize("table", NAMES.values(), ids=NAMES)
def test_any_table_and_column_can_be_guarded(lab, table):
    lab.run(
        migrations.CreateModel(
            "Order",
            [("id", models.BigAutoField(primary_key=True)), ("fence_token", FenceTokenField(db_column=table[::-1]))],
            options={"db_table": table},
        )
    )
    guarded(lab)
    lab.after_migrate()
    assert "fence guard on " in refused(lower, lab, column=table[::-1])
    lab.back()
    assert traces(lab) == []


@pytest.mark.parametrize("using", DATABASES[1:2], indirect=True)
def test_a_table_in_another_schema_is_guarded_there(lab, using):
    with connections[using].cursor() as cursor:
        cursor.execute('CREATE SCHEMA IF NOT EXISTS "far away"')
    lab.order(db_table='"far away"."the orders"')
    guarded(lab)
    refused(lower, lab)
    with CaptureQueriesContext(lab.connection) as captured:
        lab.after_migrate()
    assert not any("CREATE" in query["sql"] for query in captured)
    assert traces(lab) == ["the orders_fence_guard"]
    lab.back()
    assert traces(lab) == []


@pytest.mark.parametrize("using", DATABASES[2:], indirect=True)
def test_a_table_in_another_database_of_the_server_is_guarded_there(lab, using):
    with connections[using].cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS `far away`")
    lab.order(db_table="`far away`.`the orders`")
    guarded(lab)
    refused(lower, lab)
    lab.after_migrate()
    lab.back()
    assert lower(lab) == 1


@pytest.mark.parametrize("target", ["child", "order"])
def test_the_guard_of_a_multi_table_child_is_on_the_table_that_has_the_token(lab, target):
    lab.order()
    link = models.OneToOneField("lab.Order", models.CASCADE, parent_link=True, primary_key=True)
    lab.run(migrations.CreateModel("Child", [("order_ptr", link)], bases=("lab.order",)))
    lab.run(AddFenceGuard(target))
    assert traces(lab) == ["lab_order_fence_guard"]
    lab.rows("Child").create(fence_token=10)
    refused(lower, lab)
    refused(lab.rows("Child").update, fence_token=4)
    with pytest.raises(ValueError, match="has a fence guard already"):
        lab.run(AddFenceGuard("child"))
    lab.run(RemoveFenceGuard("order"))
    assert traces(lab) == []


def test_a_database_that_the_router_keeps_the_model_from_gets_no_guard(lab, settings, using):
    lab.order()
    settings.DATABASE_ROUTERS = [OnlyElsewhere()]
    guarded(lab)
    lab.after_migrate()
    assert traces(lab) == []
    assert "(no-op)" in lab.sql(RemoveFenceGuard("order"))
    lab.run(RemoveFenceGuard("order"))


class OnlyElsewhere:
    """Keeps the table `order` of the tests from every database."""

    def allow_migrate(self, db, app_label, model_name=None, **hints):
        return not (app_label == LABEL and model_name == "order" and hints["model"])


RENAMES: dict[str, list[Operation]] = {
    "RenameModel": [migrations.RenameModel("Order", "Purchase")],
    "AlterModelTable": [migrations.AlterModelTable("Order", "purchases")],
    "RenameField": [migrations.RenameField("Order", "fence_token", "token")],
    "db_column": [migrations.AlterField("Order", "fence_token", FenceTokenField(db_column="token"))],
}


@pytest.mark.parametrize("operations", RENAMES.values(), ids=RENAMES)
def test_a_guard_goes_with_its_table_and_column_when_they_are_renamed(lab, operations):
    lab.order()
    guarded(lab)
    lab.run(*operations)
    lab.after_migrate()
    name = "Purchase" if "RenameModel" in repr(operations) else "Order"
    model = lab.rows(name).model
    field = next(field for field in model._meta.fields if isinstance(field, FenceTokenField))
    said = refused(lower, lab, name, field.column)
    assert lab.connection.vendor == "sqlite" or "token 4 is refused, the row carries 10" in said
    assert f"fence guard on {model._meta.db_table}: " in said
    lab.run(RemoveFenceGuard(name))
    assert lower(lab, name, field.column) == 1
    assert traces(lab) == []
    lab.back()
    lab.back()
    lab.after_migrate()
    refused(lab.rows().update, fence_token=3)


def test_without_the_end_of_migrate_a_renamed_column_is_still_never_lowered(lab):
    lab.order()
    guarded(lab)
    lab.run(*RENAMES["RenameField"])
    with pytest.raises(Exception, match=r"fence guard on|Unknown column"):
        lower(lab, column="token")


def test_a_dropped_table_takes_its_guard_along_and_a_new_one_can_have_it(lab):
    lab.order()
    guarded(lab)
    lab.run(migrations.DeleteModel("Order"))
    lab.after_migrate()
    lab.order()
    guarded(lab)
    refused(lower, lab)
    lab.back()
    assert traces(lab) == []


REBUILDS = {
    "AlterField": migrations.AlterField("Order", "status", models.CharField(max_length=40, null=True)),
    "RemoveField": migrations.RemoveField("Order", "note"),
    "AddField": migrations.AddField("Order", "sku", models.CharField(max_length=20, default="", unique=True)),
    "AddConstraint": migrations.AddConstraint(
        "Order", models.CheckConstraint(condition=models.Q(amount__gte=0), name="lab_amount")
    ),
}


@pytest.mark.parametrize("operation", REBUILDS.values(), ids=REBUILDS)
@pytest.mark.parametrize("strict", [False, True])
def test_a_guard_survives_later_migrations_of_its_table(lab, operation, strict):
    lab.order(
        ("note", models.CharField(max_length=9, unique=True, default="")), ("amount", models.IntegerField(default=0))
    )
    guarded(lab, strict=strict)
    lab.run(operation)
    if lab.connection.vendor == "sqlite":
        assert traces(lab) == []
    lab.after_migrate()
    refused(lower, lab)
    with CaptureQueriesContext(lab.connection) as captured:
        lab.after_migrate()
    assert not [query for query in captured if "CREATE" in query["sql"]]
    lab.back()
    lab.after_migrate()
    refused(lower, lab)


def test_a_guard_that_was_lost_on_the_way_can_be_removed(lab):
    lab.order()
    guarded(lab)
    lab.run(REBUILDS["AlterField"], RemoveFenceGuard("order"))
    assert traces(lab) == []


def test_a_column_cannot_be_removed_from_under_its_guard_or_the_guard_goes_with_it(lab):
    """SQLite refuses, and PostgreSQL with Django 6; MariaDB would keep a trigger that breaks every UPDATE."""
    lab.order()
    guarded(lab)
    with contextlib.suppress(DatabaseError):
        lab.run(migrations.RemoveField("Order", "fence_token"))
        lab.after_migrate()
        assert lab.connection.vendor != "sqlite"
    assert lab.rows().update(status="written") == 1


def test_a_column_that_is_filled_by_an_update_needs_a_strict_guard_out_of_the_way(lab):
    lab.order(("note", models.CharField(max_length=20, null=True)))
    guarded(lab, strict=True)
    fill = migrations.AlterField("Order", "note", models.CharField(max_length=20, default="x"))
    if lab.connection.vendor != "sqlite":
        refused(lab.run, fill)
    lab.run(RemoveFenceGuard("order"), fill, AddFenceGuard("order", strict=True))
    refused(lab.rows().update, status="written")


def test_what_cannot_be_guarded_is_refused_before_any_sql(lab):
    lab.run(migrations.CreateModel("Plain", [("id", models.BigAutoField(primary_key=True))]))
    lab.order()
    with pytest.raises(FieldDoesNotExist, match=r"lab\.Plain has no FenceTokenField"):
        lab.run(AddFenceGuard("Plain"))
    with pytest.raises(ValueError, match=r"the table of lab\.order has no fence guard"):
        lab.run(RemoveFenceGuard("order"))
    for name in ("", "ä" * 32):
        with pytest.raises(ValueError, match="takes 1 to 63 bytes"):
            AddFenceGuard("order", name=name)


def test_squashed_migrations_can_write_the_operations_down():
    for operation in (AddFenceGuard("order", strict=True, name="x"), RemoveFenceGuard("order")):
        text, imports = OperationWriter(operation, indentation=0).serialize()
        assert imports == {"import fenced_locks.operations"}
        assert "order" in text
    assert "strict=True" in OperationWriter(AddFenceGuard("order", strict=True)).serialize()[0]


def test_the_state_keeps_the_guard_through_copies_and_renames(lab):
    lab.order()
    guarded(lab, strict=True)
    lab.run(*RENAMES["RenameModel"])
    guard = guard_of(lab.state.clone(), (LABEL, "purchase"))
    assert guard == guard_of(lab.state, (LABEL, "purchase"))
    assert (guard.name, guard.strict) == ("lab_order_fence_guard", True)
