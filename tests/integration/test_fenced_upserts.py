"""Rows that may or may not exist: ``fenced_update_or_create``, ``fenced_get_or_create``, ``fenced_bulk_upsert``."""

import inspect

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connections, models, transaction
from django.db.models.signals import post_save
from django.db.models.sql import InsertQuery
from django.db.utils import DatabaseError
from django.utils import timezone

from fenced_locks import StaleToken
from fenced_locks.upserts import ConditionalUpsert
from tests.app.models import Customer, Item, Order, OrderProxy, Parcel, SpecialOrder, Stock

pytestmark = pytest.mark.django_db(databases=["default", "postgres", "mariadb"])


@pytest.fixture(params=["default", "postgres", "mariadb"])
def using(request):
    return request.param


@pytest.fixture
def stock(using):
    return Stock.objects.using(using)


def content(rows):
    return sorted(rows.values_list("shop", "sku", "amount", "fence_token"))


class TestUpdateOrCreate:
    def test_a_new_row_carries_the_token_and_an_old_one_gets_it(self, stock):
        new, created = stock.fenced_update_or_create(5, {"amount": 1}, shop="a", sku="x")
        assert (created, new.fence_token, new.amount) == (True, 5, 1)
        assert content(stock) == [("a", "x", 1, 5)]
        old, created = stock.fenced_update_or_create(6, {"amount": 2}, shop="a", sku="x")
        assert (created, old.pk, old.fence_token, old.amount) == (False, new.pk, 6, 2)
        assert content(stock) == [("a", "x", 2, 6)]

    @pytest.mark.parametrize("token", [4, 5])
    def test_a_stale_token_is_refused_with_both_tokens(self, stock, token):
        stock.fenced_update_or_create(5, {"amount": 1}, shop="a", sku="x")
        with pytest.raises(StaleToken) as caught:
            stock.fenced_update_or_create(token, {"amount": 2}, shop="a", sku="x")
        assert (caught.value.token, caught.value.current) == (token, 5)
        assert content(stock) == [("a", "x", 1, 5)]

    def test_repeatable_admits_an_equal_token_and_no_smaller_one(self, stock):
        stock.fenced_update_or_create(5, {"amount": 1}, shop="a", sku="x")
        stock.fenced_update_or_create(5, {"amount": 2}, repeatable=True, shop="a", sku="x")
        with pytest.raises(StaleToken):
            stock.fenced_update_or_create(4, {"amount": 3}, repeatable=True, shop="a", sku="x")
        assert content(stock) == [("a", "x", 2, 5)]

    def test_a_refusal_and_a_conflict_leave_the_callers_transaction_usable(self, using, stock):
        stock.fenced_update_or_create(5, {"barcode": "1"}, shop="a", sku="x")
        with transaction.atomic(using=using):
            with pytest.raises(StaleToken):
                stock.fenced_update_or_create(4, {"amount": 2}, shop="a", sku="x")
            with pytest.raises(IntegrityError):
                stock.fenced_update_or_create(7, {"barcode": "1"}, shop="a", sku="y")
            stock.fenced_update_or_create(6, {"amount": 3}, shop="a", sku="x")
        assert content(stock) == [("a", "x", 3, 6)]

    def test_without_defaults_the_row_only_gets_the_token(self, stock):
        stock.fenced_update_or_create(5, shop="a", sku="x")
        stock.fenced_update_or_create(6, shop="a", sku="x")
        assert content(stock) == [("a", "x", 0, 6)]

    def test_create_defaults_and_callables_are_those_of_django(self, stock):
        def both(token):
            return stock.fenced_update_or_create(
                token, {"amount": lambda: 2}, create_defaults={"amount": lambda: 1}, shop="a", sku="x"
            )[0].amount

        assert [both(5), both(6)] == [1, 2]

    def test_only_the_defaults_and_what_sets_itself_are_written(self, stock):
        stock.fenced_update_or_create(5, {"amount": 1, "barcode": "1"}, shop="a", sku="x")
        long_ago = timezone.now().replace(year=2000)
        stock.update(changed_at=long_ago)

        def receiver(instance, update_fields, **kwargs):
            seen.append(set(update_fields))

        seen = []
        post_save.connect(receiver, Stock)
        try:
            stock.fenced_update_or_create(6, {"amount": 2}, shop="a", sku="x")
        finally:
            post_save.disconnect(receiver, Stock)
        assert seen == [{"amount", "changed_at", "fence_token"}]
        assert stock.get().changed_at > long_ago

    def test_the_conditions_of_the_queryset_and_of_joins_hold(self, using):
        ada = Customer.objects.using(using).create(name="Ada")
        order = Order.objects.using(using).create(customer=ada, status="old")
        rows = Order.objects.using(using).filter(customer__name="Ada", status="old")
        found, created = rows.fenced_update_or_create(5, {"status": "new"}, pk=order.pk)
        assert (found, created) == (order, False)
        with pytest.raises(IntegrityError):
            rows.fenced_update_or_create(6, {"status": "newer"}, pk=order.pk)
        order.refresh_from_db()
        assert (order.status, order.fence_token) == ("new", 5)

    @pytest.mark.parametrize("method", ["fenced_update_or_create", "fenced_get_or_create"])
    def test_a_related_manager_creates_rows_of_its_own(self, using, method):
        ada, bob = (Customer.objects.using(using).create(name=name) for name in ("Ada", "Bob"))
        order, created = getattr(ada.orders, method)(5, status="new")
        assert (created, order.customer) == (True, ada)
        assert getattr(ada.orders.filter(amount=0), method)(6, status="new") == (order, False)
        assert getattr(bob.orders.all(), method)(6, status="new")[1]
        assert (ada.orders.count(), bob.orders.count()) == (1, 1)

    def test_a_distinct_queryset_over_many(self, using):
        order = Order.objects.using(using).create()
        for sku in "ab":
            Item.objects.using(using).create(order=order, sku=sku)
        rows = Order.objects.using(using).filter(items__sku__in=["a", "b"])
        with pytest.raises(Order.MultipleObjectsReturned):
            rows.fenced_update_or_create(5, {"amount": 1}, status="new")
        assert rows.distinct().fenced_update_or_create(5, {"amount": 1}, status="new") == (order, False)

    def test_a_multi_table_child_is_fenced_by_its_parent(self, using):
        rows = SpecialOrder.objects.using(using)
        special, created = rows.fenced_update_or_create(5, {"note": "one", "status": "sent"}, amount=7)
        assert created
        rows.fenced_update_or_create(6, {"note": "two"}, amount=7)
        Order.objects.using(using).filter(pk=special.pk).fenced_update(9)
        with pytest.raises(StaleToken):
            rows.fenced_update_or_create(8, {"note": "stale"}, amount=7)
        special.refresh_from_db()
        assert (special.note, special.status, special.fence_token) == ("two", "sent", 9)

    def test_a_child_is_not_put_upon_a_parent_with_a_newer_token(self, using):
        order = Order.objects.using(using).create(fence_token=9)
        with pytest.raises(StaleToken):
            SpecialOrder.objects.using(using).fenced_update_or_create(8, {"note": "stale"}, pk=order.pk)
        assert not SpecialOrder.objects.using(using).exists()

    def test_a_multi_table_child_may_be_created_with_a_key_of_its_own(self, using):
        rows = SpecialOrder.objects.using(using)
        for pk, find in enumerate((rows.fenced_update_or_create, rows.fenced_get_or_create), 700):
            instance, created = find(8, {"note": "new"}, pk=pk)
            assert (created, instance.pk, instance.fence_token) == (True, pk, 8)
            assert rows.values_list("note", "fence_token").get(pk=pk) == ("new", 8)
        SpecialOrder(pk=800, note="saved").fenced_save(8, using=using)
        assert rows.get(pk=800).fence_token == 8
        gone = rows.get(pk=800)
        rows.filter(pk=800).delete()
        with pytest.raises(SpecialOrder.DoesNotExist):
            gone.fenced_save(9)
        assert not Order.objects.using(using).filter(pk=800).exists()

    def test_what_cannot_be_fenced_is_refused(self, stock):
        for write in (
            lambda: stock.fenced_update_or_create(5, {"fence_token": 9}, shop="a", sku="x"),
            lambda: stock.fenced_update_or_create(5, create_defaults={"fence_token": 9}, shop="a", sku="x"),
            lambda: stock.fenced_get_or_create(5, fence_token=9),
            lambda: stock.all()[:1].fenced_update_or_create(5, shop="a", sku="x"),
            lambda: stock.fenced_update_or_create(None, shop="a", sku="x"),
            lambda: stock.fenced_get_or_create(-1, shop="a", sku="x"),
            lambda: stock.fenced_bulk_upsert([], True, unique_fields=["id"], update_fields=[]),
        ):
            with pytest.raises((TypeError, ValueError), match=r"fence_token|slice|token must be"):
                write()
        assert not stock.exists()


class TestGetOrCreate:
    def test_a_new_row_carries_the_token_and_an_old_one_stays_as_it_is(self, using, stock, django_assert_num_queries):
        new, created = stock.fenced_get_or_create(5, {"amount": 1}, shop="a", sku="x")
        assert (created, new.fence_token) == (True, 5)
        with django_assert_num_queries(1, using=using):
            for_older = stock.fenced_get_or_create(4, {"amount": 2}, shop="a", sku="x")
        assert for_older == (new, False)
        assert content(stock) == [("a", "x", 1, 5)]

    def test_a_conflict_leaves_the_callers_transaction_usable(self, using, stock):
        stock.fenced_get_or_create(5, {"barcode": "1"}, shop="a", sku="x")
        with transaction.atomic(using=using):
            with pytest.raises(IntegrityError):
                stock.fenced_get_or_create(6, {"barcode": "1"}, shop="a", sku="y")
            assert stock.fenced_get_or_create(6, shop="a", sku="z")[1]
        assert stock.count() == 2


def upsert(rows, token, *amounts, shop="a", **options):
    objs = [Stock(shop=shop, sku=sku, amount=amount) for sku, amount in amounts]
    options = {"unique_fields": ["shop", "sku"], "update_fields": ["amount"], **options}
    return rows.fenced_bulk_upsert(objs, token, **options)


def told(using, number):
    """Return what ``fenced_bulk_upsert`` says after that many rows."""
    return None if using == "mariadb" else number


class TestBulkUpsert:
    def test_rows_are_inserted_written_and_refused_by_one_statement(self, using, stock, django_assert_num_queries):
        stock.create(shop="a", sku="old", amount=1, fence_token=4)
        stock.create(shop="a", sku="equal", amount=1, fence_token=5)
        stock.create(shop="a", sku="newer", amount=1, fence_token=6)
        with django_assert_num_queries(1, using=using):
            number = upsert(stock, 5, ("old", 2), ("equal", 2), ("newer", 2), ("new", 2))
        assert number == told(using, 2)
        assert content(stock) == [("a", "equal", 1, 5), ("a", "new", 2, 5), ("a", "newer", 1, 6), ("a", "old", 2, 5)]

    def test_repeatable_admits_an_equal_token(self, using, stock):
        upsert(stock, 5, ("x", 1), ("y", 1))
        stock.filter(sku="y").fenced_update(6)
        assert upsert(stock, 5, ("x", 2), ("y", 2), repeatable=True) == told(using, 1)
        assert content(stock) == [("a", "x", 2, 5), ("a", "y", 1, 6)]

    def test_fields_that_are_not_named_stay(self, stock):
        stock.create(shop="a", sku="x", amount=1, barcode="1")
        objs = [Stock(shop="a", sku="x", amount=2, barcode="2")]
        stock.fenced_bulk_upsert(objs, 5, unique_fields=["shop", "sku"], update_fields=[])
        assert content(stock) == [("a", "x", 1, 5)]
        assert stock.get().barcode == "1"

    @pytest.mark.parametrize("unique", ["pk", "id"])
    def test_by_primary_key_with_new_ones_beside(self, using, stock, unique):
        old = stock.create(shop="a", sku="x", amount=1)
        objs = [Stock(pk=old.pk, shop="a", sku="x", amount=2), Stock(shop="a", sku="y", amount=2)]
        number = stock.fenced_bulk_upsert(objs, 5, unique_fields=[unique], update_fields=["amount"])
        assert number == told(using, 2)
        assert content(stock) == [("a", "x", 2, 5), ("a", "y", 2, 5)]

    def test_another_unique_field_never_leads_to_a_row_that_was_not_meant(self, using, stock):
        stock.create(shop="a", sku="x", amount=1, barcode="1")
        other = [Stock(shop="b", sku="y", amount=2, barcode="1")]

        def write():
            stock.fenced_bulk_upsert(other, 5, unique_fields=["shop", "sku"], update_fields=["amount"])

        if using == "mariadb":
            write()
        else:
            with pytest.raises(IntegrityError), transaction.atomic(using=using):
                write()
        assert content(stock) == [("a", "x", 1, 0)]

    def test_batches_are_all_or_nothing(self, using, stock, django_assert_num_queries):
        rows = [(f"sku{number:04}", number) for number in range(25)]
        assert upsert(stock, 5, *rows, batch_size=10) == told(using, 25)
        with pytest.raises(DatabaseError), transaction.atomic(using=using):
            upsert(stock, 6, *((sku, -1) for sku, _ in rows[:-1]), (None, -1), batch_size=10)
        assert content(stock) == [("a", sku, number, 5) for sku, number in rows]

    def test_instances_learn_nothing(self, stock):
        obj = Stock(shop="a", sku="x")
        stock.fenced_bulk_upsert([obj], 5, unique_fields=["shop", "sku"], update_fields=[])
        assert (obj.pk, obj.fence_token, obj._state.adding) == (None, 0, True)

    def test_mariadb_counts_a_refused_row_like_a_new_one(self):
        def counted(token, amount):
            upsert = ConditionalUpsert(Stock, using="mariadb")
            upsert.prepare(token, ["shop", "sku"], repeatable=False)
            upsert.run([Stock(shop="a", sku="x", amount=amount)], ["amount"], None)
            return upsert._written

        assert [counted(5, 1), counted(6, 2), counted(4, 3)] == [1, 2, 1]

    def test_none_are_none(self, using, stock):
        assert upsert(stock, 5) == told(using, 0)

    def test_proxies_share_the_table_of_their_model(self, using):
        order = Order.objects.using(using).create()
        rows = OrderProxy.objects.using(using)
        objs = [OrderProxy(pk=order.pk, amount=1)]
        assert rows.fenced_bulk_upsert(objs, 5, unique_fields=["pk"], update_fields=["amount"]) == told(using, 1)
        order.refresh_from_db()
        assert (order.amount, order.fence_token) == (1, 5)

    def test_multi_table_children_are_refused(self, using):
        for objs in ([], [SpecialOrder(note="x")]):
            with pytest.raises(ValueError, match="multi-table"):
                SpecialOrder.objects.using(using).fenced_bulk_upsert(
                    objs, 5, unique_fields=["pk"], update_fields=["note"]
                )

    def test_arguments_that_cannot_be_right_are_refused(self, stock):
        for problem, options in {
            "unique_fields": {"unique_fields": []},
            "fence_token": {"update_fields": ["fence_token"]},
            "primary keys": {"update_fields": ["id"]},
            "positive": {"batch_size": 0},
        }.items():
            with pytest.raises(ValueError, match=problem):
                upsert(stock, 5, ("x", 1), **options)
        with pytest.raises(ValueError, match="two objects have the same shop, sku"):
            upsert(stock, 5, ("x", 1), ("x", 2))
        assert not stock.exists()


class TestAsyncTwins:
    def test_they_do_the_same(self):
        async def main():
            rows = Parcel.objects
            parcel, created = await rows.afenced_update_or_create(5, {"status": "sent"}, pk=1)
            assert created
            assert await rows.afenced_get_or_create(4, pk=1) == (parcel, False)
            options = {"unique_fields": ["pk"], "update_fields": ["status"]}
            assert await rows.afenced_bulk_upsert([Parcel(pk=1, status="home")], 6, **options) == 1
            with pytest.raises(StaleToken):
                await rows.afenced_update_or_create(5, {"status": "stale"}, pk=1)

        async_to_sync(main)()
        assert Parcel.objects.values_list("status", "fence_token").get() == ("home", 6)

    def test_templates_cannot_call_any(self):
        for name in ("update_or_create", "get_or_create", "bulk_upsert"):
            assert getattr(Order.objects.all(), f"fenced_{name}").alters_data
            assert getattr(Order.objects.all(), f"afenced_{name}").alters_data


class TestDjangosPrivateParts:
    """What ``fenced_locks.upserts`` leans on."""

    def test_bulk_create_hands_each_batch_to_insert_with_these_arguments(self):
        names = "self objs fields returning_fields raw using on_conflict update_fields unique_fields"
        assert list(inspect.signature(models.QuerySet._insert).parameters) == names.split()

    def test_the_insert_ends_with_its_values(self, using):
        query = InsertQuery(Order)
        query.insert_values([Order._meta.get_field("status")], [Order(), Order()])
        ((statement, _),) = query.get_compiler(using=using).as_sql()
        assert statement.startswith("INSERT INTO ")
        assert statement.endswith(")")
        assert "CONFLICT" not in statement

    def test_the_suffix_ends_with_the_last_assignment(self, using):
        suffix = connections[using].ops.on_conflict_suffix_sql([], models.constants.OnConflict.UPDATE, ["a"], ["b"])
        if using == "mariadb":
            assert suffix == "ON DUPLICATE KEY UPDATE `a` = VALUE(`a`)"
        else:
            assert suffix == 'ON CONFLICT("b") DO UPDATE SET "a" = EXCLUDED."a"'
