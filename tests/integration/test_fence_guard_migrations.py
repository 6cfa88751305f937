"""A fence guard through a table's life: renamed, rebuilt, dropped, removed with its column."""

from __future__ import annotations

import contextlib

import pytest
from django.db import DatabaseError, migrations, models
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import OperationWriter
from django.test.utils import CaptureQueriesContext

from fenced_locks.fields import FenceTokenField
from fenced_locks.guards import guard_of
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


def test_the_type_of_a_guarded_column_can_be_changed_without_the_guard(lab):
    lab.order(token=models.IntegerField(default=0))
    guarded(lab)
    wider = migrations.AlterField("Order", "fence_token", FenceTokenField())
    if lab.connection.vendor == "postgresql":
        with pytest.raises(DatabaseError, match="trigger definition"):
            lab.run(wider)
    lab.run(RemoveFenceGuard("order"), wider, AddFenceGuard("order"))
    refused(lower, lab)


def test_a_column_that_is_filled_by_an_update_needs_a_strict_guard_out_of_the_way(lab):
    lab.order(("note", models.CharField(max_length=20, null=True)))
    guarded(lab, strict=True)
    fill = migrations.AlterField("Order", "note", models.CharField(max_length=20, default="x"))
    if lab.connection.vendor != "sqlite":
        refused(lab.run, fill)
    lab.run(RemoveFenceGuard("order"), fill, AddFenceGuard("order", strict=True))
    refused(lab.rows().update, status="written")


def test_squashed_migrations_can_write_the_operations_down():
    for operation in (AddFenceGuard("order", strict=True, name="x"), RemoveFenceGuard("order")):
        text, imports = OperationWriter(operation, indentation=0).serialize()
        assert imports == {"import fenced_locks.operations"}
        assert "order" in text
    assert "strict=True" in OperationWriter(AddFenceGuard("order", strict=True)).serialize()[0]


class OtherState(ModelState):
    """A kind of state as other packages have, for their kinds of tables."""

    def render(self, apps):
        model = super().render(apps)
        model.made_by = self
        return model


def test_the_state_of_another_package_stays_what_it_is(lab):
    lab.order()
    lab.state = ProjectState({key: OtherState(**vars_of(state)) for key, state in lab.state.models.items()})
    guarded(lab)
    refused(lower, lab)
    assert isinstance(lab.rows().model.made_by, OtherState)


def vars_of(state):
    names = ("app_label", "name", "fields", "options", "bases", "managers")
    return {name: getattr(state, name) for name in names}


def test_the_state_keeps_the_guard_through_copies_and_renames(lab):
    lab.order()
    guarded(lab, strict=True)
    lab.run(*RENAMES["RenameModel"])
    guard = guard_of(lab.state.clone(), (LABEL, "purchase"))
    assert guard == guard_of(lab.state, (LABEL, "purchase"))
    assert (guard.name, guard.strict) == ("lab_order_fence_guard", True)
