"""
Law 2 under concurrency, on PostgreSQL: a stale writer waits for the row of a newer one that has not committed yet.

The naive forms lose here: Django moves a joined filter, fence included, into a subquery that was read before the
wait; and ``pk__in`` around the caller's conditions loses those in the same way.
"""

import pytest
from django.db import OperationalError, connections, transaction
from django.db.models import Count, F, Q

from tests.app.models import Customer, Item, Order
from tests.helpers import run_threads, wait_until

pytestmark = pytest.mark.django_db(databases=["default", "postgres"], transaction=True)

rows = Order.objects.using("postgres")

QUERYSETS = {
    "key": lambda: rows.all(),
    "filter": lambda: rows.filter(status="old"),
    "join": lambda: rows.filter(status="old", customer__name="Ada"),
    "many": lambda: rows.filter(status="old", items__sku__in=["a", "b"]),
    "distinct": lambda: rows.filter(status="old", items__sku__in=["a", "b"]).distinct(),
    "exclude": lambda: rows.filter(status="old").exclude(customer__name="Bob"),
    "q": lambda: rows.filter(Q(customer__name="Ada") | Q(amount=99), status="old"),
    "annotation": lambda: rows.annotate(name=F("customer__name")).filter(name="Ada", status="old"),
    "aggregate": lambda: rows.annotate(n=Count("items")).filter(n=2, status="old"),
    "values": lambda: rows.filter(customer__name="Ada", status="old").values("status"),
}


@pytest.fixture
def order():
    customer = Customer.objects.using("postgres").create(name="Ada")
    order = rows.create(customer=customer, status="old")
    Item.objects.using("postgres").create(order=order, sku="a")
    Item.objects.using("postgres").create(order=order, sku="b")
    return order


def somebody_waits_for_a_row():
    with connections["postgres"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0] == 1


def race(first, second):
    """Run ``second`` while the transaction of ``first`` is open, until it waits for it; return its result."""

    def holding_the_row():
        with transaction.atomic(using="postgres"):
            first()
            done.append(True)
            wait_until(somebody_waits_for_a_row)

    def coming_later():
        wait_until(lambda: done)
        return second()

    done = []
    return run_threads(holding_the_row, coming_later)[1]


@pytest.mark.parametrize("kind", QUERYSETS)
def test_a_stale_write_that_waited_for_a_newer_one_is_refused(order, kind):
    def newer():
        # The status stays, so that only the fence can refuse the other one.
        assert rows.filter(pk=order.pk).fenced_update(10, amount=10) == 1

    assert race(newer, lambda: QUERYSETS[kind]().fenced_update(5, amount=5)) == 0
    order.refresh_from_db()
    assert (order.fence_token, order.amount) == (10, 10)


@pytest.mark.parametrize("kind", [kind for kind in QUERYSETS if kind != "key"])
def test_a_valid_write_that_waited_still_keeps_the_callers_conditions(order, kind):
    def unfenced():
        assert rows.filter(pk=order.pk).update(status="cancelled") == 1

    assert race(unfenced, lambda: QUERYSETS[kind]().fenced_update(5, status="shipped")) == 0
    order.refresh_from_db()
    assert (order.fence_token, order.status) == (0, "cancelled")


@pytest.mark.parametrize("kind", QUERYSETS)
def test_a_newer_write_that_waited_for_an_older_one_wins(order, kind):
    def older():
        assert rows.filter(pk=order.pk).fenced_update(5, amount=5) == 1

    assert race(older, lambda: QUERYSETS[kind]().fenced_update(10, amount=10)) == 1
    order.refresh_from_db()
    assert (order.fence_token, order.amount) == (10, 10)


def test_joined_writers_of_the_same_rows_do_not_deadlock(order):
    customer = order.customer
    for _ in range(20):
        rows.create(customer=customer, status="old")

    def writer(token, ordering):
        for step in range(10):
            rows.filter(customer__name="Ada").order_by(ordering).fenced_update(token + step, amount=token)

    run_threads(*[lambda n=n: writer(n * 100, "pk" if n % 2 else "-pk") for n in range(1, 5)])
    assert set(rows.values_list("fence_token", flat=True)) == {409}


def test_a_subquery_on_the_same_table_is_read_again_too(order):
    def unfenced():
        assert rows.filter(pk=order.pk).update(status="cancelled") == 1

    nested = rows.filter(pk__in=rows.filter(status="old").values("pk"))
    assert race(unfenced, lambda: nested.fenced_update(5, status="shipped")) == 0
    order.refresh_from_db()
    assert (order.fence_token, order.status) == (0, "cancelled")


def test_a_row_that_moves_between_two_matching_joins_is_not_missed(order):
    twin = Customer.objects.using("postgres").create(name="Ada")

    def moving():
        assert rows.filter(pk=order.pk).update(customer=twin) == 1

    assert race(moving, lambda: rows.filter(customer__name="Ada").fenced_update(5, status="shipped")) == 1


def test_locked_rows_can_still_be_referred_to(order):
    def joined():
        assert rows.filter(customer__name="Ada").fenced_update(5) == 1

    def referring():
        Item.objects.using("postgres").create(order=order, sku="c")

    with transaction.atomic(using="postgres"):
        joined()
        run_threads(referring, timeout=5)


def test_an_impatient_lock_of_the_caller_stays_one(order):
    mine = rows.filter(customer__name="Ada")

    def others():
        assert mine.select_for_update(skip_locked=True).fenced_update(6) == 0
        with pytest.raises(OperationalError):
            mine.select_for_update(nowait=True).fenced_update(6)

    with transaction.atomic(using="postgres"):
        assert rows.filter(pk=order.pk).fenced_update(5) == 1
        run_threads(others, timeout=5)


def test_opposite_orders_do_not_deadlock(order):
    for _ in range(20):
        rows.create(customer=order.customer, status="old")

    def writer(token, turned):
        mine = rows.filter(customer__name="Ada")
        for step in range(15):
            (mine.reverse() if turned else mine).fenced_update(token + step)

    run_threads(*[lambda n=n: writer(n * 100, n % 2) for n in range(1, 5)])
