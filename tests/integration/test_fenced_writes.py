"""Fenced writes beyond ``fenced_update`` of one table, and what plain writes do on fenced models."""

import pytest
from asgiref.sync import async_to_sync
from django.core import serializers
from django.db import DatabaseError, IntegrityError, connections, models, transaction
from django.db.models import Case, F, Value, When

from fenced_locks import StaleToken
from fenced_locks.models import FencedQuerySet
from fenced_locks.signals import stale_write_rejected
from tests.app.models import Customer, Item, Order, Parcel, SpecialOrder
from tests.guarded.models import Ledger

pytestmark = pytest.mark.django_db(databases=["default", "postgres"])


@pytest.fixture(params=["default", "postgres"])
def using(request):
    return request.param


@pytest.fixture
def order(using):
    customer = Customer.objects.using(using).create(name="Ada")
    return Order.objects.using(using).create(customer=customer, amount=1)


@pytest.fixture
def special(using):
    customer = Customer.objects.using(using).create(name="Ada")
    return SpecialOrder.objects.using(using).create(customer=customer, note="old")


def stored(instance):
    fresh = type(instance).objects.using(instance._state.db).get(pk=instance.pk)
    return fresh.fence_token, fresh.status


@pytest.fixture
def refusals():
    seen = []

    def receiver(sender, token, current, reason, using, **kwargs):
        seen.append((sender, token, current, reason, using))

    stale_write_rejected.connect(receiver)
    yield seen
    stale_write_rejected.disconnect(receiver)


class TestRepeatable:
    def test_an_equal_token_is_admitted_and_a_smaller_one_is_not(self, using, order):
        mine = Order.objects.using(using).filter(pk=order.pk)
        assert mine.fenced_update(5, status="one") == 1
        assert mine.fenced_update(5, repeatable=True, status="two") == 1
        assert mine.fenced_update(4, repeatable=True, status="stale") == 0
        assert stored(order) == (5, "two")
        assert mine.filter(customer__name="Ada").fenced_update(5, repeatable=True, status="three") == 1
        assert stored(order) == (5, "three")


class TestRefusals:
    @pytest.mark.parametrize(("token", "reason"), [(4, "stale"), (5, "repeated")])
    def test_the_signal_tells_why(self, using, order, refusals, token, reason):
        mine = Order.objects.using(using).filter(pk=order.pk)
        mine.fenced_update(5)
        assert mine.fenced_update(token) == 0
        assert refusals == [(Order, token, 5, reason, using)]

    def test_a_missing_row_is_told_from_a_stale_write(self, using, order, refusals):
        assert Order.objects.using(using).filter(pk=0).fenced_update(5) == 0
        assert refusals == [(Order, 5, None, "missing", using)]

    def test_a_refused_write_is_one_query_if_nobody_listens(self, using, order, django_assert_num_queries):
        mine = Order.objects.using(using).filter(pk=order.pk)
        mine.fenced_update(5)
        with django_assert_num_queries(1, using=using):
            mine.fenced_update(4)

    def test_a_receiver_that_fails_breaks_nothing(self, using, order):
        def receiver(**kwargs):
            raise ZeroDivisionError

        stale_write_rejected.connect(receiver)
        try:
            assert Order.objects.using(using).filter(pk=0).fenced_update(5) == 0
        finally:
            stale_write_rejected.disconnect(receiver)


class TestMultiTableChildren:
    def test_fields_of_all_tables_are_written_under_the_one_token(self, using, special):
        mine = SpecialOrder.objects.using(using).filter(pk=special.pk)
        assert mine.fenced_update(5, note="new", status="sent", amount=F("amount") + 1) == 1
        special.refresh_from_db()
        assert (special.fence_token, special.note, special.status, special.amount) == (5, "new", "sent", 1)
        assert mine.fenced_update(4, note="stale") == 0
        assert mine.filter(customer__name="Ada", note="new").fenced_update(6, note="newer") == 1
        assert mine.filter(note="new").fenced_update(7, note="newest") == 0
        special.refresh_from_db()
        assert (special.fence_token, special.note) == (6, "newer")

    def test_a_token_written_through_the_parent_refuses_the_child(self, using, special):
        Order.objects.using(using).filter(pk=special.pk).fenced_update(5)
        assert SpecialOrder.objects.using(using).fenced_update(4, note="stale") == 0
        special.refresh_from_db()
        assert special.note == "old"

    def test_a_failing_field_leaves_all_tables_as_they_were(self, using, special):
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            SpecialOrder.objects.using(using).fenced_update(5, status="sent", note=None)
        assert stored(special) == (0, "new")

    def test_saving_and_deleting(self, using, special):
        special.note, special.status = "new", "sent"
        special.fenced_save(5)
        fresh = SpecialOrder.objects.using(using).get(pk=special.pk)
        assert (fresh.fence_token, fresh.note, fresh.status) == (5, "new", "sent")
        fresh.note = "stale"
        with pytest.raises(StaleToken):
            fresh.fenced_save(4)
        assert SpecialOrder.objects.using(using).get(pk=special.pk).note == "new"
        with pytest.raises(StaleToken):
            fresh.fenced_delete(4)
        assert fresh.fenced_delete(6)[0] == 2
        assert not Order.objects.using(using).exists()


class TestExpressions:
    def test_case_and_annotations_are_values_with_and_without_a_join(self, using, order):
        rows = Order.objects.using(using).annotate(twice=F("amount") * 2)
        case = Case(When(status="new", then=Value("seen")), default=Value("other"))
        assert rows.fenced_update(5, amount=F("twice"), status=case) == 1
        assert rows.filter(customer__name="Ada").fenced_update(6, amount=F("twice"), status=case) == 1
        order.refresh_from_db()
        assert (order.amount, order.status) == (4, "other")


class TestDelete:
    def test_a_stale_token_deletes_nothing(self, using, order):
        Item.objects.using(using).create(order=order, sku="a")
        mine = Order.objects.using(using).filter(pk=order.pk)
        mine.fenced_update(5)
        for rows in (mine, mine.filter(customer__name="Ada"), mine.filter(items__sku="a").distinct()):
            assert rows.fenced_delete(5) == (0, {})
        assert Item.objects.using(using).count() == 1
        assert mine.filter(customer__name="Ada").fenced_delete(6) == (2, {"app.Item": 1, "app.Order": 1})

    def test_without_dependants_it_is_one_statement(self, using, django_assert_num_queries):
        Parcel.objects.using(using).create(fence_token=3)
        with django_assert_num_queries(1, using=using):
            assert Parcel.objects.using(using).fenced_delete(3)[0] == 0
        with django_assert_num_queries(1, using=using):
            assert Parcel.objects.using(using).fenced_delete(3, repeatable=True) == (1, {"app.Parcel": 1})

    def test_of_an_instance(self, using, order):
        Order.objects.using(using).fenced_update(5)
        with pytest.raises(StaleToken) as caught:
            order.fenced_delete(4)
        assert (caught.value.token, caught.value.current) == (4, 5)
        assert order.fenced_delete(6)[0] == 1
        assert order.pk is None
        with pytest.raises(ValueError, match="no primary key"):
            order.fenced_delete(7)

    def test_managers_do_not_delete_everything_by_a_slip(self):
        assert not hasattr(Order.objects, "fenced_delete")
        assert FencedQuerySet.fenced_delete.alters_data


class TestFencedSave:
    def test_it_writes_the_row_and_sets_the_token(self, using, order, django_assert_num_queries):
        order.status = "sent"
        with django_assert_num_queries(1, using=using):
            order.fenced_save(5)
        assert order.fence_token == 5
        assert stored(order) == (5, "sent")
        order.status = "again"
        with pytest.raises(StaleToken):
            order.fenced_save(5)
        order.fenced_save(5, repeatable=True)
        assert stored(order) == (5, "again")

    def test_a_refusal_tells_both_tokens_and_leaves_the_instance(self, using, order):
        Order.objects.using(using).fenced_update(7)
        order.status = "stale"
        with pytest.raises(StaleToken) as caught:
            order.fenced_save(5)
        assert (caught.value.token, caught.value.current) == (5, 7)
        assert order.fence_token == 0
        assert stored(order) == (7, "new")

    def test_a_row_that_is_gone_does_not_come_back(self, using, order):
        Order.objects.using(using).all().delete()
        with pytest.raises(Order.DoesNotExist):
            order.fenced_save(5)
        assert not Order.objects.using(using).exists()

    def test_update_fields_writes_those_and_the_token(self, using, order):
        order.status, order.amount = "sent", 99
        order.fenced_save(5, update_fields=["status"])
        order.refresh_from_db()
        assert (order.fence_token, order.status, order.amount) == (5, "sent", 1)

    def test_a_new_row_carries_the_token_from_its_first_moment(self, using):
        order = Order(status="first")
        order.fenced_save(5, using=using)
        assert stored(order) == (5, "first")
        broken = Order(status=None)
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            broken.fenced_save(6, using=using)
        assert broken.fence_token == 0

    @pytest.mark.parametrize("token", [None, True, "5", -1, 2**63])
    def test_what_is_no_token_is_refused(self, order, token):
        with pytest.raises((TypeError, ValueError), match="token must be"):
            order.fenced_save(token)
        with pytest.raises((TypeError, ValueError), match="token must be"):
            order.fenced_delete(token)

    def test_templates_cannot_call_it(self, order):
        assert order.fenced_save.alters_data
        assert order.fenced_delete.alters_data


class TestAsyncTwins:
    def test_they_do_the_same(self):
        order = Order.objects.create()

        async def main():
            assert await Order.objects.filter(pk=order.pk).afenced_update(5, status="five") == 1
            order.status = "six"
            await order.afenced_save(6)
            assert await Order.objects.filter(pk=order.pk).afenced_delete(6) == (0, {})
            assert (await order.afenced_delete(7))[0] == 1

        async_to_sync(main)()
        assert not Order.objects.exists()


class TestPlainWrites:
    def test_a_save_of_an_overtaken_instance_is_refused(self, using, order):
        Order.objects.using(using).fenced_update(5, status="five")
        order.status = "stale"
        for save in (order.save, lambda: order.save(update_fields=["status", "fence_token"])):
            with pytest.raises(StaleToken, match="was loaded at fence token 0 and its row carries 5") as caught:
                save()
            assert (caught.value.token, caught.value.current) == (0, 5)
        assert stored(order) == (5, "five")

    def test_a_fresh_instance_is_saved_in_one_query_and_keeps_the_token(self, using, order, django_assert_num_queries):
        Order.objects.using(using).fenced_update(5)
        order.refresh_from_db()
        order.status = "plain"
        with django_assert_num_queries(1, using=using):
            order.save()
        assert stored(order) == (5, "plain")

    def test_with_the_token_deferred_the_column_is_left_alone(self, using, order):
        loaded = Order.objects.using(using).defer("fence_token").get(pk=order.pk)
        Order.objects.using(using).fenced_update(5)
        loaded.status = "plain"
        loaded.save()
        assert stored(order) == (5, "plain")

    def test_the_check_can_be_turned_off_for_a_model(self, using, order, monkeypatch):
        monkeypatch.setattr(Order, "Fence", type("Fence", (), {"check_saves": False}), raising=False)
        Order.objects.using(using).fenced_update(5)
        order.status = "plain"
        order.save()
        assert stored(order) == (5, "plain")

    def test_a_row_that_is_gone_is_inserted_again_as_django_does(self, using, order):
        Order.objects.using(using).all().delete()
        order.save()
        assert stored(order) == (0, "new")

    def test_a_multi_table_child_is_guarded_by_its_parents_token(self, using, special):
        Order.objects.using(using).filter(pk=special.pk).fenced_update(5)
        special.note = "stale"
        with pytest.raises(StaleToken):
            special.save()
        assert SpecialOrder.objects.using(using).get(pk=special.pk).note == "old"

    def test_a_new_instance_under_the_key_of_a_fenced_row_does_not_overwrite_it(self, using, order):
        Order.objects.using(using).fenced_update(5, status="five")
        with pytest.raises(StaleToken):
            Order(pk=order.pk, status="new").save(using=using)
        assert stored(order) == (5, "five")

    def test_a_fixture_of_an_older_row_is_refused(self, using, order):
        text = serializers.serialize("json", [order])
        Order.objects.using(using).fenced_update(5)
        for loaded in serializers.deserialize("json", text):
            with pytest.raises(StaleToken), transaction.atomic(using=using):
                loaded.save(using=using)
        assert stored(order)[0] == 5

    def test_update_or_create_leaves_the_column_alone(self, using, order):
        Order.objects.using(using).fenced_update(5)
        Order.objects.using(using).update_or_create(pk=order.pk, defaults={"status": "plain"})
        assert stored(order) == (5, "plain")

    def test_querysets_refuse_to_write_the_column(self, using, order):
        rows = Order.objects.using(using)
        order.fence_token = 0
        for write in (
            lambda: rows.update(fence_token=0),
            lambda: rows.update(fence_token=F("fence_token") - 1),
            lambda: rows.bulk_update([order], ["status", "fence_token"]),
            lambda: rows.bulk_create(
                [order], update_conflicts=True, unique_fields=["id"], update_fields=["fence_token"]
            ),
        ):
            with pytest.raises(ValueError, match="fence_token"):
                write()
        assert rows.update(status="plain") == 1
        assert rows.bulk_update([order], ["status"]) == 1

    def test_djangos_private_hook_is_the_one_that_is_used(self):
        assert callable(models.Model._do_update)
        assert connections["default"].vendor == "sqlite"


def test_a_save_of_nothing_but_the_token_tells_that_the_row_is_gone(using, order):
    Order.objects.using(using).all().delete()
    with pytest.raises(DatabaseError, match="did not affect any rows"):
        order.save(update_fields=["fence_token"])


def test_a_fenced_save_of_no_fields_writes_the_token(using, order):
    order.status = "not written"
    order.fenced_save(5, update_fields=[])
    assert stored(order) == (5, "new")
    with pytest.raises(StaleToken):
        order.fenced_save(4, update_fields=[])


@pytest.mark.django_db(databases=["default", "postgres", "mariadb"])
@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
def test_what_a_strict_guard_refuses_of_ours_is_a_stale_token(alias):
    ledger = Ledger.objects.using(alias).create()
    mine = Ledger.objects.using(alias).filter(pk=ledger.pk)
    assert mine.fenced_update(5, balance=1) == 1
    ledger.refresh_from_db()
    for write in (
        lambda: mine.fenced_update(5, repeatable=True, balance=2),
        lambda: ledger.fenced_save(5, repeatable=True),
    ):
        with pytest.raises(StaleToken, match="refused by the database") as caught, transaction.atomic(using=alias):
            write()
        assert isinstance(caught.value.__cause__, IntegrityError)
    assert mine.get().balance == 1
