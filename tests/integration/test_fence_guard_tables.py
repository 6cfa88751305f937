"""A fence guard is made and taken back, shown and named, on whatever table has the token."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, migrations, models
from django.test.utils import CaptureQueriesContext

from fenced_locks.fields import FenceTokenField
from fenced_locks.operations import AddFenceGuard, RemoveFenceGuard
from tests.lab import DATABASES, LABEL, Lab, guarded, lower, refused, traces


@pytest.fixture(params=DATABASES)
def using(request):
    return request.param


@pytest.fixture
def lab(using):
    lab = Lab(using)
    yield lab
    lab.clean()


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


@pytest.mark.parametrize("strict", [False, True])
def test_an_empty_token_is_smaller_than_any(lab, strict):
    lab.order(token=models.BigIntegerField(null=True))
    guarded(lab, strict=strict)
    refused(lab.rows().update, fence_token=None)
    lab.rows().create(fence_token=None)
    empty = lab.rows().filter(fence_token=None)
    if strict:
        refused(empty.update, fence_token=None)
    else:
        assert empty.update(fence_token=None) == 1
    assert empty.update(fence_token=0) == 1


def test_a_column_that_may_be_empty_later_gets_the_guard_for_it(lab):
    lab.order(token=models.BigIntegerField(default=0))
    guarded(lab)
    lab.run(migrations.AlterField("Order", "fence_token", models.BigIntegerField(null=True)))
    lab.after_migrate()
    refused(lab.rows().update, fence_token=None)


@pytest.mark.parametrize("using", DATABASES[1:2], indirect=True)
def test_a_row_cannot_go_back_by_moving_to_another_partition(lab, using):
    """PostgreSQL makes a DELETE and an INSERT of such an UPDATE, and runs no AFTER UPDATE trigger."""
    lab.order(token=models.BigIntegerField(default=0))
    with connections[using].cursor() as cursor:
        cursor.execute("ALTER TABLE lab_order RENAME TO old")
        cursor.execute("CREATE TABLE lab_order (LIKE old INCLUDING IDENTITY) PARTITION BY LIST (status)")
        cursor.execute("CREATE TABLE lab_new PARTITION OF lab_order FOR VALUES IN ('new')")
        cursor.execute("CREATE TABLE lab_rest PARTITION OF lab_order DEFAULT")
        cursor.execute("DROP TABLE old")
    guarded(lab)
    refused(lab.rows().update, status="sent", fence_token=4)
    assert lab.rows().update(status="sent", fence_token=11) == 1


@pytest.mark.parametrize("using", DATABASES[2:], indirect=True)
def test_the_number_that_mysql_has_for_it_makes_an_integrity_error_too(lab, monkeypatch):
    lab.order()
    with monkeypatch.context() as patch:
        patch.setitem(vars(lab.connection), "mysql_is_mariadb", False)
        guarded(lab)
    assert "3819" in refused(lower, lab)
