"""``assert_fenced``: what it takes for a write without a token, on every database."""

import asyncio

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, models, transaction
from django.db.models.signals import post_save

from fenced_locks.models import FencedModel
from fenced_locks.testing import assert_fenced
from tests.app.models import Customer, Item, Order, OrderProxy, SpecialOrder, Stock

DATABASES = [
    pytest.param(alias, marks=pytest.mark.django_db(databases=["default", alias]))
    for alias in ("default", "postgres", "mariadb")
]


@pytest.fixture(params=DATABASES)
def orders(request):
    """The orders on one database; order 1 carries token 5."""
    rows = Order.objects.using(request.param)
    rows.bulk_create([Order(pk=1, fence_token=5), Order(pk=2)])
    return rows


def fenced_writes(orders):
    customer = Customer.objects.using(orders.db).create(name="x")
    one = orders.get(pk=1)
    yield lambda: orders.filter(pk=1).fenced_update(10, status="a")
    yield lambda: orders.filter(pk=1, customer__name="x").fenced_update(11, status="a")
    yield lambda: one.fenced_save(12)
    yield lambda: Order(pk=3, customer=customer).fenced_save(13, using=orders.db)
    yield lambda: orders.fenced_update_or_create(14, {"status": "b"}, pk=3)
    yield lambda: orders.fenced_get_or_create(15, pk=4)
    yield lambda: orders.fenced_bulk_upsert(
        [Order(pk=4, amount=2), Order(pk=5)], 16, unique_fields=["id"], update_fields=["amount"]
    )
    yield lambda: Order(pk=4).fenced_delete(17, using=orders.db)
    yield lambda: orders.filter(pk=5).fenced_delete(18)
    yield lambda: async_to_sync(orders.filter(pk=1).afenced_update)(20, status="c")
    yield lambda: list(orders.select_for_update())
    # Changes no row.
    yield lambda: orders.filter(pk=99).update(status="x")
    yield lambda: orders.filter(pk=1).fenced_update(3, status="x")
    yield lambda: Item.objects.using(orders.db).create(order_id=1, sku="x")


PLAIN_WRITES = {
    "save": lambda orders: orders.get(pk=1).save(),
    "create": lambda orders: orders.create(pk=3),
    "update": lambda orders: orders.filter(pk=2).update(status="x"),
    "update with a join": lambda orders: orders.filter(items__sku="x").update(status="y"),
    "bulk_update": lambda orders: orders.bulk_update([Order(pk=1, status="z")], ["status"]),
    "bulk_create": lambda orders: orders.bulk_create([Order(pk=4)]),
    "upsert": lambda orders: orders.update_or_create(pk=2, defaults={"status": "y"}),
    "raw": lambda orders: _raw(orders, "UPDATE app_order SET status = 'q' WHERE fence_token < 100"),
    "raw, many": lambda orders: _raw(orders, "UPDATE app_order SET status = %s", [["r"], ["s"]]),
    "delete": lambda orders: orders.get(pk=2).delete(),
    "delete many": lambda orders: orders.filter(pk=2).delete(),
    "raw delete": lambda orders: _raw(orders, "delete  from app_order where id = 2"),
}


def _raw(orders, sql, many=None):
    with connections[orders.db].cursor() as cursor:
        cursor.executemany(sql, many) if many else cursor.execute(sql)


def test_fenced_writes_pass(orders):
    with transaction.atomic(using=orders.db):
        for write in fenced_writes(orders):
            with assert_fenced(Order):
                write()


@pytest.mark.parametrize("name", PLAIN_WRITES)
def test_every_plain_write_is_found_and_shown(orders, name):
    Item.objects.using(orders.db).create(order_id=1, sku="x")
    with pytest.raises(AssertionError, match=r"rows of app\.Order were written without a fence token:\n .*app_order"):
        with assert_fenced(Order):
            PLAIN_WRITES[name](orders)


def test_raw_sql_that_compares_and_sets_the_token_is_fenced(orders):
    with assert_fenced(Order):
        _raw(orders, "UPDATE app_order SET status = 'x', fence_token = 30 WHERE fence_token < 30")
    with pytest.raises(AssertionError, match="fence_token = 31"), assert_fenced(Order):
        _raw(orders, "UPDATE app_order SET status = 'x', fence_token = 31")


@pytest.mark.django_db
class TestOnSqlite:
    def test_what_a_receiver_writes_is_not_covered_by_the_write_that_it_hears_of(self):
        Order.objects.bulk_create([Order(pk=1), Order(pk=2)])

        def write_another(instance, **kwargs):
            Order.objects.filter(pk=2).update(status="x")

        post_save.connect(write_another, sender=Order)
        try:
            with pytest.raises(AssertionError, match="without a fence token"), assert_fenced(Order):
                Order.objects.get(pk=1).fenced_save(10)
        finally:
            post_save.disconnect(write_another, sender=Order)

    def test_all_tables_of_a_child_are_watched_and_no_others(self):
        child = SpecialOrder.objects.create(note="x")
        with assert_fenced(Order):
            SpecialOrder.objects.filter(pk=child.pk).update(note="y")
        with pytest.raises(AssertionError), assert_fenced(SpecialOrder):
            SpecialOrder.objects.filter(pk=child.pk).update(note="z")
        with pytest.raises(AssertionError), assert_fenced(SpecialOrder):
            Order.objects.filter(pk=child.pk).update(status="z")
        with assert_fenced(SpecialOrder):
            SpecialOrder.objects.filter(pk=child.pk).fenced_update(10, note="a", status="b")
            child.fenced_save(11)
            child.fenced_delete(12)

    def test_a_proxy_is_its_table(self):
        with pytest.raises(AssertionError, match=r"app\.OrderProxy"), assert_fenced(OrderProxy):
            Order.objects.create()

    def test_an_error_of_the_block_is_raised_and_the_watch_ends(self):
        with pytest.raises(KeyError), assert_fenced(Order):
            Order.objects.create()
            raise KeyError("x")
        assert connections["default"].execute_wrappers == []
        Order.objects.create()

    def test_it_can_be_used_again(self):
        watch = assert_fenced(Order)
        for _ in range(2):
            with pytest.raises(AssertionError) as caught, watch:
                Order.objects.create()
            assert str(caught.value).count("INSERT") == 1
        with watch:
            pass

    @pytest.mark.parametrize("bad", [Customer, Item, models.Model, FencedModel, None, "app.Order", Order(), object, 7])
    def test_what_is_no_model_or_has_no_token_or_no_table_is_refused(self, bad):
        with pytest.raises(TypeError, match=r"^model must be a FencedModel with a table, and ") as caught:
            assert_fenced(bad)
        assert repr(bad) in str(caught.value)


@pytest.mark.django_db
class TestHowStatementsAreWritten:
    def write(self, sql):
        with connections["default"].cursor() as cursor:
            cursor.execute(sql)

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE APP_ORDER SET status = 'x'",
            'update "main" . "app_order" SET status = 5',
            "UPDATE [app_order] SET status = 'x'",
            "UPDATE OR IGNORE app_order SET status = 'x'",
            "UPDATE /* of */ app_order SET status = 'x'",
            "UPDATE -- of\n app_order SET status = 'x'",
            "UPDATE app_order SET status = 'fence_token = 3 fence_token < 5'",
            "UPDATE app_order SET status = 'x' /* fence_token = 3 fence_token < 5 */",
            "UPDATE app_order SET fence_token = 9 WHERE fence_token <> 9",
            "UPDATE app_order SET status = 'x' WHERE fence_token = 0 OR fence_token < 5",
        ],
    )
    def test_a_write_is_seen_and_what_only_looks_like_a_fence_is_none(self, sql):
        Order.objects.create()
        with pytest.raises(AssertionError, match="were written without a fence token"), assert_fenced(Order):
            self.write(sql)

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE app_order SET FENCE_TOKEN = 9 WHERE [fence_token] < 9",
            "SELECT 'UPDATE app_order SET status = 5'",
            "SELECT 1 -- DELETE FROM app_order",
        ],
    )
    def test_a_fence_is_one_however_it_is_written_and_what_is_quoted_writes_nothing(self, sql):
        Order.objects.create()
        with assert_fenced(Order):
            self.write(sql)

    def test_a_table_with_a_space_in_its_name_is_watched(self):
        for write in (
            lambda: Stock.objects.create(shop="a", sku="pen"),
            lambda: Stock.objects.update(amount=1),
            lambda: Stock.objects.all().delete(),
        ):
            with pytest.raises(AssertionError, match=r"rows of app\.Stock"), assert_fenced(Stock):
                write()
        with assert_fenced(Stock):
            Stock.objects.fenced_update_or_create(5, {"amount": 2}, shop="a", sku="pen")
            Stock.objects.fenced_update(6, amount=3)


@pytest.mark.django_db(transaction=True)
def test_async_code_is_watched_where_the_orm_works():
    async def main():
        order = await Order.objects.acreate()
        async with assert_fenced(Order):
            await Order.objects.filter(pk=order.pk).afenced_update(10, status="x")
        with pytest.raises(AssertionError, match="UPDATE"):
            async with assert_fenced(Order):
                await Order.objects.filter(pk=order.pk).aupdate(status="y")
        async with assert_fenced(Order):
            await asyncio.sleep(0)

    async_to_sync(main)()
