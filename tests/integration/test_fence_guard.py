"""A fence guard refuses every UPDATE that lowers a token, whoever sends it, until maintenance lifts it."""

from __future__ import annotations

import contextlib
import threading

import pytest
from django.core.serializers.base import DeserializedObject
from django.db import DatabaseError, IntegrityError, connections, models, transaction
from django.db.models import F

from fenced_locks.guards import is_guard_refusal, without_fence_guard
from fenced_locks.operations import AddFenceGuard
from tests.helpers import run_threads, wait_until
from tests.lab import DATABASES, Lab, quoted, refused


@pytest.fixture(params=DATABASES)
def using(request):
    return request.param


@pytest.fixture
def lab(using):
    """One row with token 10 in a table without a guard, and nothing of ours between it and Django."""
    lab = Lab(using)
    lab.order(token=models.BigIntegerField(default=0))
    lab.rows().create(fence_token=10)
    yield lab
    lab.clean()


@pytest.fixture
def guarded(lab):
    lab.run(AddFenceGuard("order"))
    return lab


@pytest.fixture
def strict(lab):
    lab.run(AddFenceGuard("order", strict=True))
    return lab


def row(lab):
    return lab.rows().values_list("fence_token", "status").get()


def changed(lab, token):
    order = lab.rows().get()
    order.fence_token, order.status = token, "written"
    return order


def upsert(lab, token):
    target = {} if lab.connection.vendor == "mysql" else {"unique_fields": ["id"]}
    fields = ["fence_token", "status"]
    lab.rows().bulk_create([changed(lab, token)], update_conflicts=True, update_fields=fields, **target)


def update_or_create(lab, token):
    lab.rows().update_or_create(pk=lab.rows().get().pk, defaults={"fence_token": token, "status": "written"})


def sql(lab, token):
    with lab.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {quoted(lab)} SET status = 'written', fence_token = %s", [token])


WRITES = {
    "save": lambda lab, token: changed(lab, token).save(),
    "update": lambda lab, token: lab.rows().update(fence_token=token, status="written"),
    "expression": lambda lab, token: lab.rows().update(fence_token=F("fence_token") + token - 10, status="written"),
    "update_or_create": update_or_create,
    "bulk_update": lambda lab, token: lab.rows().bulk_update([changed(lab, token)], ["fence_token", "status"]),
    "bulk_create with update_conflicts": upsert,
    "raw save of a fixture": lambda lab, token: DeserializedObject(changed(lab, token)).save(),
    "sql": sql,
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


@every_write
def test_a_write_that_lowers_the_token_is_refused(guarded, write):
    refused(write, guarded, 4)
    assert row(guarded) == (10, "new")


@every_write
def test_without_a_guard_it_is_not(lab, write):
    write(lab, 4)
    assert row(lab) == (4, "written")


@every_write
def test_an_equal_and_a_greater_token_are_let_through(guarded, write):
    write(guarded, 10)
    assert row(guarded) == (10, "written")
    write(guarded, 11)
    assert row(guarded) == (11, "written")


@every_write
def test_a_strict_guard_lets_only_greater_tokens_through(strict, write):
    refused(write, strict, 4)
    refused(write, strict, 10)
    assert row(strict) == (10, "new")
    write(strict, 11)
    assert row(strict) == (11, "written")


def test_an_update_of_other_columns_is_let_through(guarded):
    guarded.rows().update(status="written")
    assert row(guarded) == (10, "written")


@pytest.mark.parametrize("status", ["written", "new"])
def test_a_strict_guard_refuses_it_even_if_it_changes_nothing(strict, status):
    with pytest.raises(IntegrityError) as caught:
        strict.rows().update(status=status)
    assert is_guard_refusal(caught.value)


def test_new_rows_and_deleted_rows_are_not_its_business(guarded):
    guarded.rows().create(fence_token=1)
    guarded.rows().filter(fence_token=10).delete()
    assert row(guarded) == (1, "new")


def test_one_row_that_would_go_back_refuses_the_whole_statement(guarded):
    guarded.rows().create(fence_token=1)
    refused(guarded.rows().update, fence_token=5)
    assert sorted(guarded.rows().values_list("fence_token", flat=True)) == [1, 10]


def test_the_refusal_names_the_table_and_both_tokens_where_the_database_can(guarded):
    said = refused(sql, guarded, 4)
    assert "fence guard on lab_order: " in said
    if guarded.connection.vendor != "sqlite":
        assert "token 4 is refused, the row carries 10" in said


def test_other_errors_are_not_taken_for_refusals(guarded):
    key = guarded.rows().get().pk
    with pytest.raises(IntegrityError) as caught:
        guarded.rows().create(pk=key, status="fence guard on ")
    assert not is_guard_refusal(caught.value)
    assert not is_guard_refusal(IntegrityError())
    assert not is_guard_refusal(ValueError("fence guard on lab_order: ..."))


def test_a_transaction_goes_on_after_a_refusal_in_a_savepoint(guarded, using):
    with transaction.atomic(using=using):
        guarded.rows().update(status="mine")
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            sql(guarded, 4)
        guarded.rows().update(fence_token=11)
    assert row(guarded) == (11, "mine")


WAITING = {
    "postgres": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mariadb": "SELECT variable_value + 0 FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}


def somebody_waits(using):
    with connections[using].cursor() as cursor:
        cursor.execute(WAITING[using])
        return cursor.fetchone()[0] == 1


@pytest.mark.parametrize("using", DATABASES[1:], indirect=True)
def test_a_writer_that_had_to_wait_is_compared_with_what_it_waited_for(guarded, using):
    """The row carries 10 when the write of 15 begins, and 20 when it gets its turn."""
    written = threading.Event()

    def newer():
        with transaction.atomic(using=using):
            guarded.rows().update(fence_token=20)
            written.set()
            wait_until(lambda: somebody_waits(using))

    def older():
        assert written.wait(10)
        refused(sql, guarded, 15)

    run_threads(newer, older)
    assert row(guarded)[0] == 20


@every_write
def test_maintenance_may_lower_tokens(strict, using, write):
    with without_fence_guard(using=using):
        write(strict, 4)
    assert row(strict) == (4, "written")
    refused(write, strict, 3)


def test_maintenance_ends_with_its_block_also_inside_a_transaction(guarded, using):
    with transaction.atomic(using=using):
        with without_fence_guard(using=using):
            sql(guarded, 4)
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            sql(guarded, 3)
    assert row(guarded)[0] == 4


def test_maintenance_that_raises_is_rolled_back_and_ended(guarded, using):
    with pytest.raises(ZeroDivisionError), without_fence_guard(using=using):
        sql(guarded, 4)
        raise ZeroDivisionError
    refused(sql, guarded, 4)
    assert row(guarded)[0] == 10


def bad_sql(using):
    with connections[using].cursor() as cursor:
        cursor.execute("no SQL")


def test_an_error_of_the_database_ends_maintenance(guarded, using):
    with transaction.atomic(using=using):
        with pytest.raises(DatabaseError), without_fence_guard(using=using):
            bad_sql(using)
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            sql(guarded, 4)
        guarded.rows().update(fence_token=11)
    assert row(guarded)[0] == 11


def test_so_does_one_that_was_swallowed(guarded, using):
    with transaction.atomic(using=using):
        # PostgreSQL refuses to go on with the transaction.
        with contextlib.suppress(DatabaseError), without_fence_guard(using=using):
            with contextlib.suppress(DatabaseError):
                bad_sql(using)
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            sql(guarded, 4)
    refused(sql, guarded, 4)


@pytest.mark.parametrize("nested", [False, True])
def test_maintenance_whose_transaction_has_to_be_rolled_back_is_rolled_back_and_ended(guarded, using, nested):
    with transaction.atomic(using=using) if nested else contextlib.nullcontext():
        with without_fence_guard(using=using):
            sql(guarded, 4)
            transaction.set_rollback(True, using=using)
        assert row(guarded)[0] == 10
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            sql(guarded, 4)


@pytest.mark.parametrize("using", DATABASES[2:], indirect=True)
def test_maintenance_ends_with_a_transaction_that_the_server_ended(guarded, using):
    """As a deadlock does on MariaDB: the savepoint to return to is gone."""
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=using), without_fence_guard(using=using):
        with connections[using].cursor() as cursor:
            cursor.execute("ROLLBACK")
        raise ZeroDivisionError
    refused(sql, guarded, 4)


def test_maintenance_may_be_nested(guarded, using):
    with without_fence_guard(using=using):
        with without_fence_guard(using=using):
            sql(guarded, 4)
        sql(guarded, 3)
        with pytest.raises(ZeroDivisionError), without_fence_guard(using=using):
            raise ZeroDivisionError
        sql(guarded, 2)
    refused(sql, guarded, 1)
    assert row(guarded)[0] == 2


def test_a_rollback_around_maintenance_takes_back_its_work_only(guarded, using):
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=using):
        with without_fence_guard(using=using):
            sql(guarded, 4)
        raise ZeroDivisionError
    refused(sql, guarded, 4)
    assert row(guarded)[0] == 10


def test_maintenance_ends_when_its_connection_is_lost(guarded, using):
    with pytest.raises(DatabaseError), without_fence_guard(using=using):
        connections[using].close()
        sql(guarded, 4)
    refused(sql, guarded, 4)


def test_other_connections_stay_guarded(guarded, using):
    other = guarded.rows().create(fence_token=10)
    lifted, tried = threading.Event(), threading.Event()

    def maintain():
        with without_fence_guard(using=using):
            guarded.rows().exclude(pk=other.pk).update(fence_token=4)
            lifted.set()
            # On SQLite nobody else can write before this ends.
            assert using == "default" or tried.wait(10)

    def write():
        assert lifted.wait(10)
        with pytest.raises(IntegrityError) as caught:
            guarded.rows().filter(pk=other.pk).update(fence_token=4)
        assert is_guard_refusal(caught.value)
        tried.set()

    run_threads(maintain, write)
    assert sorted(guarded.rows().values_list("fence_token", flat=True)) == [4, 10]
