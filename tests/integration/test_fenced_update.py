"""Law 2: a row never goes back. ``fenced_update`` one after the other; the races are in ``tests/concurrency``."""

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import IntegrityError, NotSupportedError, connection, models, transaction
from django.db.models import Count, F, Q, Window
from django.db.models.functions import RowNumber
from django.template import Context, Template
from django.test.utils import CaptureQueriesContext

from fenced_locks.models import FencedModel, FencedQuerySet, FenceTokenField
from tests.app.models import Customer, Item, Order, OrderProxy, Parcel

MAX = 2**63 - 1


@pytest.fixture(params=["default", "postgres"])
def using(request):
    return request.param


@pytest.fixture
def order(using):
    customer = Customer.objects.using(using).create(name="Ada")
    order = Order.objects.using(using).create(customer=customer)
    Item.objects.using(using).create(order=order, sku="a")
    Item.objects.using(using).create(order=order, sku="b")
    return order


def row(order):
    order.refresh_from_db()
    return order.fence_token, order.status


pytestmark = pytest.mark.django_db(databases=["default", "postgres"])


def rows(using):
    return Order.objects.using(using)


def test_a_greater_token_writes_and_an_equal_or_smaller_one_does_not(using, order):
    mine = rows(using).filter(pk=order.pk)
    assert mine.fenced_update(5, status="five") == 1
    assert row(order) == (5, "five")
    assert mine.fenced_update(5, status="again") == 0
    assert mine.fenced_update(4, status="stale") == 0
    assert row(order) == (5, "five")
    assert mine.fenced_update(6, status="six") == 1
    assert row(order) == (6, "six")


def test_the_greatest_token_of_the_column_is_written_and_refuses_the_rest(using, order):
    assert rows(using).fenced_update(MAX, status="last") == 1
    assert rows(using).fenced_update(MAX - 1, status="stale") == 0
    assert row(order) == (MAX, "last")


def test_without_fields_the_row_only_gets_the_token(using, order):
    assert rows(using).fenced_update(5) == 1
    assert row(order) == (5, "new")


QUERYSETS = {
    "all": lambda q: q.all(),
    "filter": lambda q: q.filter(status="new"),
    "join": lambda q: q.filter(customer__name="Ada"),
    "many": lambda q: q.filter(items__sku__in=["a", "b"]),
    "distinct many": lambda q: q.filter(items__sku__in=["a", "b"]).distinct(),
    "exclude": lambda q: q.exclude(customer__name="Bob"),
    "exclude many": lambda q: q.exclude(items__sku="c"),
    "q": lambda q: q.filter(Q(customer__name="Ada") | Q(amount=99)),
    "annotation": lambda q: q.annotate(name=F("customer__name")).filter(name="Ada"),
    "aggregate": lambda q: q.annotate(n=Count("items")).filter(n=2),
    "subquery": lambda q: q.filter(customer__in=Customer.objects.using(q.db).filter(name="Ada")),
    "values": lambda q: q.filter(customer__name="Ada").values("status"),
    "only": lambda q: q.filter(customer__name="Ada").only("status"),
    "select related": lambda q: q.filter(customer__name="Ada").select_related("customer"),
    "ordered": lambda q: q.filter(customer__name="Ada").order_by("customer__name", "-pk"),
    "for update": lambda q: q.filter(customer__name="Ada").select_for_update(),
}


@pytest.mark.parametrize("kind", QUERYSETS)
def test_every_kind_of_queryset_writes_its_rows_and_no_others(using, order, kind):
    other = Order.objects.using(using).create(status="other", amount=1)
    queryset = QUERYSETS[kind](rows(using).exclude(status="other"))
    assert queryset.fenced_update(5, amount=5) == 1
    assert row(order) == (5, "new")
    assert queryset.fenced_update(4, amount=4) == 0
    assert row(other) == (0, "other")
    assert queryset.fenced_update(6, status="five") == 1
    assert row(order) == (6, "five")


@pytest.mark.parametrize("kind", ["all", "filter", "exclude many", "subquery"])
def test_a_queryset_without_a_join_is_one_statement(using, order, kind, django_assert_num_queries):
    with django_assert_num_queries(1, using=using) as captured:
        QUERYSETS[kind](rows(using)).fenced_update(5, status="five")
    assert captured[0]["sql"].startswith("UPDATE")


def test_every_queryset_on_sqlite_is_one_statement(django_assert_num_queries):
    for build in QUERYSETS.values():
        with django_assert_num_queries(1):
            build(Order.objects.all()).fenced_update(5, status="five")


def test_the_statement_is_the_one_written_by_hand(using, order):
    from django.db import connections

    with CaptureQueriesContext(connections[using]) as ours:
        rows(using).filter(pk=order.pk).fenced_update(5, status="x")
    with CaptureQueriesContext(connections[using]) as by_hand:
        Order._base_manager.using(using).filter(pk=order.pk).filter(fence_token__lt=5).update(fence_token=5, status="x")
    assert ours[0]["sql"] == by_hand[0]["sql"]


def test_expressions_are_values_too(using, order):
    rows(using).filter(customer__name="Ada").fenced_update(5, amount=F("amount") + 10)
    rows(using).filter(pk=order.pk).fenced_update(6, amount=F("amount") * 2)
    order.refresh_from_db()
    assert order.amount == 20


def test_related_managers_proxies_and_own_managers_have_it(using, order):
    assert order.customer.orders.using(using).fenced_update(5, status="five") == 1
    assert OrderProxy.objects.using(using).filter(customer__name="Ada").fenced_update(6, status="six") == 1
    for manager in (Parcel.objects, Parcel.as_manager, Parcel.open_ones, Parcel.fenced, Parcel.fenced_from_queryset):
        parcel = Parcel.objects.using(using).create()
        assert manager.using(using).filter(pk=parcel.pk).fenced_update(5, status="arrived") == 1
        assert manager.using(using).filter(pk=parcel.pk).fenced_update(4, status="stale") == 0


def test_a_failing_value_leaves_the_row_as_it_was(using, order):
    for queryset in (rows(using), rows(using).filter(customer__name="Ada")):
        with pytest.raises(IntegrityError), transaction.atomic(using=using):
            queryset.fenced_update(5, status=None)
        assert row(order) == (0, "new")


@pytest.mark.parametrize("token", [None, True, 1.0, "5", b"5", [5]])
def test_what_is_no_token_is_refused_before_any_sql(token, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(TypeError, match="token must be the fence token"):
        Order.objects.fenced_update(token, status="x")


@pytest.mark.parametrize("token", [-1, 2**63])
def test_a_token_out_of_range_is_refused_before_any_sql(token, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(ValueError, match=r"between 0 and 2\*\*63 - 1"):
        Order.objects.fenced_update(token, status="x")


def test_the_token_is_passed_by_position_only_and_is_no_field(django_assert_num_queries):
    with django_assert_num_queries(0):
        with pytest.raises(ValueError, match="fence_token cannot be among the fields"):
            Order.objects.fenced_update(5, fence_token=9)
        with pytest.raises(TypeError, match="positional"):
            Order.objects.fenced_update(status="x")


def test_querysets_that_cannot_be_fenced_are_refused_before_any_sql(using, order, django_assert_num_queries):
    queryset = rows(using)
    with django_assert_num_queries(0, using=using):
        with pytest.raises(TypeError, match="slice"):
            queryset.all()[:1].fenced_update(5, status="x")
        with pytest.raises(TypeError, match="distinct"):
            queryset.distinct("status").fenced_update(5, status="x")
        with pytest.raises(NotSupportedError):
            queryset.union(queryset.all()).fenced_update(5, status="x")
        with pytest.raises(FieldDoesNotExist):
            queryset.fenced_update(5, nothing="x")
    assert row(order) == (0, "new")


def test_templates_cannot_call_it(order):
    Template("{{ orders.fenced_update }}").render(Context({"orders": Order.objects}))
    assert Order.objects.fenced_update.alters_data
    assert row(order) == (0, "new")


def test_a_new_row_may_start_with_a_token(using):
    created = Order.objects.using(using).create(fence_token=7)
    assert Order.objects.using(using).filter(pk=created.pk).fenced_update(7) == 0


def test_the_field_is_a_big_integer_of_no_form():
    field = Order._meta.get_field("fence_token")
    assert isinstance(field, models.BigIntegerField)
    assert (field.default, field.editable) == (0, False)
    _, path, args, kwargs = field.deconstruct()
    assert (path, args, kwargs) == ("fenced_locks.fields.FenceTokenField", [], {})
    assert FenceTokenField(editable=True).deconstruct()[3] == {"editable": True}
    assert FencedModel._meta.abstract
    assert isinstance(Order.objects.all(), FencedQuerySet)
    assert connection.vendor == "sqlite"


def test_more_rows_than_one_statement_takes_are_all_written(using, order):
    """What the first portion writes must not make the rows of the second one fail the conditions."""
    Order.objects.using(using).bulk_create(Order(customer=order.customer) for _ in range(1500))
    beside_a_new_one = rows(using).filter(customer__orders=order, customer__orders__status="new")
    assert beside_a_new_one.fenced_update(5, status="five") == 1501


def test_the_results_that_were_read_before_are_forgotten(using, order):
    for queryset in (rows(using).all(), rows(using).filter(customer__name="Ada")):
        token = max(row.fence_token for row in queryset) + 1
        queryset.fenced_update(token, status="written")
        assert [row.fence_token for row in queryset] == [token]


def test_an_own_update_is_called_with_and_without_a_join(using, order):
    class Stamping(FencedQuerySet):
        def update(self, **fields):
            return super().update(**fields, amount=7)

    for token, queryset in enumerate((Stamping(Order, using=using), Stamping(Order, using=using)), 1):
        queryset = queryset.filter(customer__name="Ada") if token == 2 else queryset
        Order._base_manager.using(using).update(amount=0)
        assert queryset.fenced_update(token) == 1
        order.refresh_from_db()
        assert order.amount == 7


def test_a_row_that_the_default_manager_hides_is_written(using):
    parcel = Parcel.objects.using(using).create(status="arrived")
    hidden = FencedQuerySet(Parcel, using=using).filter(pk__in=Parcel.objects.using(using).values("pk"))
    assert hidden.fenced_update(5) == 1
    assert Parcel.objects.using(using).get(pk=parcel.pk).fence_token == 5


def test_the_fence_does_not_change_what_a_window_counts(using, order):
    other = Order.objects.using(using).create(customer=order.customer, fence_token=10)
    ranked = rows(using).annotate(rank=Window(RowNumber(), order_by=F("pk").desc()), who=F("customer__name"))
    assert ranked.filter(rank=1).fenced_update(5) == 0
    assert ranked.filter(rank=2).fenced_update(5) == 1
    order.refresh_from_db()
    other.refresh_from_db()
    assert (order.fence_token, other.fence_token) == (5, 10)


def test_a_token_cannot_be_null():
    with pytest.raises(TypeError, match="cannot be null"):
        FenceTokenField(null=True)
