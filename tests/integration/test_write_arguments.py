"""Fenced writes that are asked for what makes no sense: refused at once, by name and value, and nothing is written."""

import pytest
from django.core.exceptions import FieldError
from django.db import IntegrityError, transaction

from tests.app.models import Order, OrderProxy, SpecialOrder, Stock

pytestmark = pytest.mark.django_db

SAME = {"unique_fields": ["shop", "sku"], "update_fields": ["amount"]}


@pytest.fixture
def order():
    order = Order.objects.create()
    Order.objects.filter(pk=order.pk).fenced_update(5, status="packed")
    return Order.objects.get(pk=order.pk)


@pytest.fixture(autouse=True)
def _the_order_is_left_alone(order):
    yield
    assert Order.objects.values_list("status", "fence_token").get(pk=order.pk) == ("packed", 5)


WRITES = {
    "fenced_update": lambda order, token, **options: Order.objects.fenced_update(token, status="lost", **options),
    "fenced_delete": lambda order, token, **options: Order.objects.all().fenced_delete(token, **options),
    "fenced_update_or_create": lambda order, token, **options: Order.objects.fenced_update_or_create(
        token, {"status": "lost"}, pk=order.pk, **options
    ),
    "fenced_bulk_upsert": lambda order, token, **options: Order.objects.fenced_bulk_upsert(
        [Order(pk=order.pk, status="lost")], token, unique_fields=["pk"], update_fields=["status"], **options
    ),
    "fenced_save": lambda order, token, **options: order.fenced_save(token, **options),
    "fenced_delete of an instance": lambda order, token, **options: order.fenced_delete(token, **options),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
class TestEachWrite:
    @pytest.mark.parametrize("token", [None, True, 7.0, "7", b"7", [7]], ids=repr)
    def test_a_token_that_is_no_int_is_refused_by_its_value(self, order, write, token):
        with pytest.raises(TypeError, match=r"^token must be the fence token of a lease, an int; got ") as caught:
            write(order, token)
        assert repr(token) in str(caught.value)

    @pytest.mark.parametrize("token", [-1, 2**63])
    def test_a_token_out_of_range_is_refused_by_its_value(self, order, write, token):
        with pytest.raises(ValueError, match=rf"^token must be between 0 and 2\*\*63 - 1; got {token}$"):
            write(order, token)

    def test_repeatable_is_true_or_false_and_no_text_that_counts_as_true(self, order, write):
        with pytest.raises(TypeError, match=r"^repeatable must be True or False, not 'no'$"):
            write(order, 5, repeatable="no")


class TestRowsThatMayNotExist:
    @pytest.mark.parametrize("values", [[("status", "lost")], "status", 5], ids=repr)
    @pytest.mark.parametrize("argument", ["defaults", "create_defaults"])
    def test_values_are_a_dict(self, order, argument, values):
        with pytest.raises(TypeError, match=rf"^{argument} must be a dict of values by field, not "):
            Order.objects.fenced_update_or_create(9, pk=order.pk, **{argument: values})

    def test_a_misspelt_value_is_refused_where_the_row_exists_too(self, order):
        with pytest.raises(FieldError, match="'statsu'"):
            Order.objects.fenced_update_or_create(9, {"statsu": "lost"}, pk=order.pk)
        with pytest.raises(FieldError, match="'statsu'"):
            Order.objects.fenced_get_or_create(9, {"statsu": "lost"}, pk=order.pk)

    @pytest.mark.parametrize("name", ["id", "pk"])
    def test_a_row_that_exists_keeps_its_key_and_no_other_row_is_written_in_its_place(self, order, name):
        other = Order.objects.create(status="other")
        with pytest.raises(ValueError, match=rf"^defaults must not .* key: {{'id': {order.pk}}} would become"):
            Order.objects.fenced_update_or_create(9, {name: other.pk, "status": "lost"}, pk=order.pk)
        other.refresh_from_db()
        assert (other.status, other.fence_token) == ("other", 0)

    def test_so_does_that_of_a_multi_table_child(self, order):
        special = SpecialOrder.objects.create()
        with pytest.raises(ValueError, match=r"^defaults must not give a row that exists another primary key"):
            SpecialOrder.objects.fenced_update_or_create(9, {"id": order.pk, "status": "lost"}, pk=special.pk)

    def test_the_key_that_it_has_may_be_among_the_values(self, order):
        other, created = Order.objects.fenced_update_or_create(9, {"id": "77", "status": "new"}, pk=77)
        assert created
        other, created = Order.objects.fenced_update_or_create(10, {"id": "77", "status": "sent"}, pk=77)
        other.refresh_from_db()
        assert (created, other.status, other.fence_token) == (False, "sent", 10)

    def test_querysets_of_values_have_no_instances_to_return(self, order):
        for rows in (Order.objects.values("pk"), Order.objects.values_list("pk")):
            with pytest.raises(TypeError, match=r"after \.values\(\)"):
                rows.fenced_update_or_create(9, {"status": "lost"}, pk=order.pk)
            with pytest.raises(TypeError, match=r"after \.values\(\)"):
                rows.fenced_get_or_create(9, {"status": "lost"}, pk=order.pk)

    def test_nor_are_they_deleted_whether_one_statement_would_do_or_not(self, order):
        with pytest.raises(TypeError, match=r"after \.values\(\)"):
            Order.objects.values("pk").fenced_delete(9)
        with pytest.raises(TypeError, match=r"after \.values\(\)"):
            Stock.objects.values("pk").fenced_delete(9)


class TestBulkUpsert:
    @pytest.mark.parametrize("argument", ["unique_fields", "update_fields"])
    @pytest.mark.parametrize("names", ["amount", None, 5, [None]], ids=repr)
    def test_fields_are_names_in_a_list(self, argument, names):
        with pytest.raises(TypeError, match=rf"^{argument} must be names, in a list or the like, not "):
            Stock.objects.fenced_bulk_upsert([], 9, **{**SAME, argument: names})

    def test_names_may_come_in_what_can_be_gone_through_once(self):
        def same():
            return {name: (field for field in fields) for name, fields in SAME.items()}

        pens = [Stock(shop="a", sku="pen", amount=1)]
        assert Stock.objects.fenced_bulk_upsert(pens, 1, **same()) == 1
        pens[0].amount = 2
        assert Stock.objects.fenced_bulk_upsert(pens, 2, **same()) == 1
        assert Stock.objects.values_list("amount", "fence_token").get() == (2, 2)

    @pytest.mark.parametrize("objs", [None, 5, [None], [Order()], [Stock], Stock()], ids=repr)
    def test_objects_are_instances_of_the_model(self, objs):
        with pytest.raises(TypeError, match=r"^objs must be instances of app\.Stock, in a list or the like; got "):
            Stock.objects.fenced_bulk_upsert(objs, 9, **SAME)
        assert not Stock.objects.exists()

    def test_they_may_be_those_of_a_proxy_or_of_what_it_stands_for(self):
        same = {"unique_fields": ["pk"], "update_fields": ["status"]}
        order = Order.objects.create()
        proxy = OrderProxy.objects.get(pk=order.pk)
        assert Order.objects.fenced_bulk_upsert([proxy], 6, **same) == 1
        assert OrderProxy.objects.fenced_bulk_upsert([order], 7, **same) == 1


class TestSave:
    @pytest.mark.parametrize("names", ["status", 5, [None]], ids=repr)
    def test_fields_to_save_are_names_in_a_list(self, order, names):
        with pytest.raises(TypeError, match=r"^update_fields must be names, in a list or the like, not "):
            order.fenced_save(9, update_fields=names)

    def test_a_new_row_has_all_its_fields(self):
        with pytest.raises(ValueError, match=r"^update_fields must be None .* inserted; got \['status'\]$"):
            Order(status="new").fenced_save(9, update_fields=["status"])
        assert Order.objects.count() == 1

    def test_an_instance_that_was_refused_is_as_it_was_before(self, order):
        twin = Order(pk=order.pk, status="lost")
        with pytest.raises(IntegrityError), transaction.atomic():
            twin.fenced_save(9)
        assert (twin.fence_token, twin._state.adding) == (0, True)
        assert "_fence" not in vars(twin)


def test_what_is_to_be_overwritten_may_come_in_what_can_be_gone_through_once():
    item = Order.objects.create(status="old")
    item.status = "new"
    options = {"update_conflicts": True, "unique_fields": ["id"]}
    Order.objects.bulk_create([item], update_fields=(name for name in ["status"]), **options)
    item.refresh_from_db()
    assert item.status == "new"
    with pytest.raises(ValueError, match="does not overwrite fence_token"):
        Order.objects.bulk_create([item], update_fields=(name for name in ["fence_token"]), **options)
