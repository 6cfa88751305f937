"""
Law 2 where rows come into being: creators race for one key, a stale one waits for a newer one, a row goes away.

Whoever comes second waits inside the database for the transaction of the first, which ends only then.
"""

import contextlib

import pytest
from django.db import DatabaseError, connections, transaction

from fenced_locks import StaleToken
from tests.app.models import Stock
from tests.helpers import run_threads, wait_until

ALIASES = ["postgres", "mariadb"]
WAITERS = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    # INNODB_TRX would keep its answer for 100 ms.
    "mysql": "SELECT variable_value + 0 FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}

pytestmark = pytest.mark.django_db(databases=["default", *ALIASES], transaction=True)


@pytest.fixture(params=ALIASES)
def rows(request):
    return Stock.objects.using(request.param)


def one(rows, token, amount):
    """Write one row by ``fenced_update_or_create``; return whether that was refused."""
    try:
        rows.fenced_update_or_create(token, {"amount": amount}, shop="a", sku="x")
    except StaleToken as refusal:
        return refusal.token, refusal.current
    return None


def many(rows, token, amount):
    """Write the same row by ``fenced_bulk_upsert``."""
    objs = [Stock(shop="a", sku="x", amount=amount)]
    rows.fenced_bulk_upsert(objs, token, unique_fields=["shop", "sku"], update_fields=["amount"])


WRITES = pytest.mark.parametrize("write", [one, many])


def race(using, first, second):
    """Run ``second`` while the transaction of ``first`` is open, until it waits for it; return its result."""

    def somebody_waits():
        with connections[using].cursor() as cursor:
            cursor.execute(WAITERS[connections[using].vendor])
            return cursor.fetchone()[0] >= 1

    def holding_the_row():
        # A first that is to fail ends its transaction by an exception.
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=using):
            failing = first()
            done.append(True)
            wait_until(somebody_waits)
            if failing:
                raise ZeroDivisionError

    def coming_later():
        wait_until(lambda: done)
        return second()

    done = []
    return run_threads(holding_the_row, coming_later)[1]


def content(rows):
    return list(rows.values_list("amount", "fence_token"))


@pytest.mark.parametrize("exists", [True, False])
@WRITES
def test_a_stale_upsert_that_waited_for_a_newer_one_is_refused(rows, write, exists):
    if exists:
        rows.create(shop="a", sku="x")
    refused = race(rows.db, lambda: write(rows, 10, 10), lambda: write(rows, 5, 5))
    assert content(rows) == [(10, 10)]
    assert refused == ((5, 10) if write is one else None)


@pytest.mark.parametrize("exists", [True, False])
@WRITES
def test_a_newer_upsert_that_waited_for_an_older_one_wins(rows, write, exists):
    if exists:
        rows.create(shop="a", sku="x")
    assert race(rows.db, lambda: write(rows, 5, 5), lambda: write(rows, 10, 10)) is None
    assert content(rows) == [(10, 10)]


@WRITES
def test_a_creator_that_waited_for_one_that_rolls_back_creates(rows, write):
    def first():
        write(rows, 10, 10)
        return "failing"

    assert race(rows.db, first, lambda: write(rows, 5, 5)) is None
    assert content(rows) == [(5, 5)]


@WRITES
def test_a_row_that_goes_away_meanwhile_is_created(rows, write):
    rows.create(shop="a", sku="x", fence_token=3)

    def delete():
        rows.all().delete()

    assert race(rows.db, delete, lambda: write(rows, 5, 5)) is None
    assert content(rows) == [(5, 5)]


@WRITES
def test_the_transaction_of_a_creator_that_lost_goes_on(rows, write):
    def losing():
        with transaction.atomic(using=rows.db):
            rows.create(shop="b", sku="before")
            write(rows, 5, 5)
            rows.create(shop="b", sku="after")

    race(rows.db, lambda: write(rows, 10, 10), losing)
    assert content(rows.filter(shop="a")) == [(10, 10)]
    assert rows.filter(shop="b").count() == 2


def test_the_second_of_two_that_get_or_create_gets(rows):
    def first():
        rows.fenced_get_or_create(10, {"amount": 10}, shop="a", sku="x")

    found, created = race(rows.db, first, lambda: rows.fenced_get_or_create(5, {"amount": 5}, shop="a", sku="x"))
    assert (found.amount, found.fence_token, created) == (10, 10, False)
    assert content(rows) == [(10, 10)]


def test_a_condition_that_changed_while_the_writer_waited_holds(rows):
    rows.create(shop="a", sku="x", amount=1)

    def unfenced():
        rows.update(amount=-1)

    def conditional():
        with pytest.raises(DatabaseError):
            rows.filter(amount=1).fenced_update_or_create(5, {"amount": 5}, shop="a", sku="x")

    race(rows.db, unfenced, conditional)
    assert content(rows) == [(-1, 0)]


@pytest.mark.parametrize("using", ["default", *ALIASES])
@pytest.mark.parametrize("write", [one, many])
def test_of_many_that_start_at_once_the_newest_is_left(using, write):
    rows = Stock.objects.using(using)

    def writer(first):
        for token in range(first, 60, 4):
            write(rows, token, token)

    run_threads(*[lambda first=first: writer(first) for first in range(1, 5)])
    assert content(rows) == [(59, 59)]


def test_mariadbs_repeatable_reads_see_the_row_that_won():
    rows = Stock.objects.using("mariadb")

    def losing():
        with connections["mariadb"].cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic(using="mariadb"):
            assert not rows.filter(sku="y").exists()
            other_may_go.append(True)
            wait_until(lambda: committed)
            return rows.fenced_get_or_create(5, {"amount": 5}, shop="a", sku="x"), one(rows, 6, 6)

    def winning():
        wait_until(lambda: other_may_go)
        one(rows, 10, 10)
        committed.append(True)

    other_may_go, committed = [], []
    (found, created), refused = run_threads(losing, winning)[0]
    assert (found.fence_token, created, refused) == (10, False, (6, 10))
