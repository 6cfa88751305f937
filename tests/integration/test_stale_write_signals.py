"""Whoever listens hears of each write that the fence has refused, once, and nobody else pays for it."""

import asyncio
import logging

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from fenced_locks import StaleToken
from fenced_locks.signals import stale_write_rejected
from tests.app.models import Order, Parcel, SpecialOrder, Stock
from tests.guarded.models import Ledger

ALL = ["default", "postgres", "mariadb"]
pytestmark = pytest.mark.django_db(databases=ALL)


@pytest.fixture(params=ALL)
def using(request):
    return request.param


@pytest.fixture
def order(using):
    order = Order.objects.using(using).create()
    Order.objects.using(using).filter(pk=order.pk).fenced_update(5)
    return Order.objects.using(using).get(pk=order.pk)


@pytest.fixture
def refusals():
    """What the signal said: (sender, token, current, reason, using)."""
    seen = []

    def receiver(sender, token, current, reason, using, **kwargs):
        seen.append((sender, token, current, reason, using))

    stale_write_rejected.connect(receiver)
    yield seen
    stale_write_rejected.disconnect(receiver)


def one(model, pk, using):
    return model.objects.using(using).filter(pk=pk)


@pytest.mark.parametrize(("token", "reason"), [(4, "stale"), (5, "repeated")])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_refused_save_and_a_refused_delete_are_told_of(using, order, refusals, token, reason, in_transaction):
    for write in (order.fenced_save, order.fenced_delete):
        with transaction.atomic(using=using) if in_transaction else pytest.MonkeyPatch.context():
            with pytest.raises(StaleToken):
                write(token)
            assert refusals == [(Order, token, 5, reason, using)]
            refusals.clear()


def test_a_refused_plain_save_is_told_of_with_the_token_that_was_loaded(using, order, refusals):
    one(Order, order.pk, using).fenced_update(6)
    with pytest.raises(StaleToken):
        order.save()
    assert refusals == [(Order, 5, 6, "stale", using)]


def test_a_refused_child_is_told_of_once_and_what_a_receiver_writes_stays(using):
    special = SpecialOrder.objects.using(using).create()
    one(SpecialOrder, special.pk, using).fenced_update(5)
    written = []

    def receiver(sender, token, **kwargs):
        written.append(Parcel.objects.using(using).create(status=f"{sender.__name__} {token}").pk)

    stale_write_rejected.connect(receiver)
    try:
        with pytest.raises(StaleToken):
            special.fenced_save(4)
    finally:
        stale_write_rejected.disconnect(receiver)
    assert [one(Parcel, pk, using).get().status for pk in written] == ["SpecialOrder 4"]


def test_what_has_no_row_is_not_stale(using, order, refusals):
    one(Order, order.pk, using).delete()
    for write in (order.fenced_save, order.fenced_delete):
        with pytest.raises(Order.DoesNotExist):
            write(6)
    assert refusals == []


def test_a_refused_upsert_is_told_of(using, order, refusals):
    with pytest.raises(StaleToken):
        Order.objects.using(using).fenced_update_or_create(4, {"status": "stale"}, pk=order.pk)
    assert refusals == [(Order, 4, 5, "stale", using)]


def test_the_refusal_of_a_strict_guard_is_told_of(using, refusals):
    ledger = Ledger.objects.using(using).create()
    one(Ledger, ledger.pk, using).fenced_update(5)
    ledger.refresh_from_db()
    for write in (
        lambda: one(Ledger, ledger.pk, using).fenced_update(5, repeatable=True),
        lambda: ledger.fenced_save(5, repeatable=True),
    ):
        with pytest.raises(StaleToken), transaction.atomic(using=using):
            write()
    assert refusals == [(Ledger, 5, 5, "repeated", using)] * 2


class TestManyAtOnce:
    @pytest.fixture
    def upsert(self, using):
        def write(token, *skus, **options):
            objs = [Stock(shop="a", sku=sku) for sku in skus]
            fields = {"unique_fields": ["shop", "sku"], "update_fields": ["amount"]}
            return Stock.objects.using(using).fenced_bulk_upsert(objs, token, **fields, **options)

        return write

    def test_a_stale_row_among_many_is_told_of(self, using, upsert, refusals):
        upsert(5, "x")
        assert refusals == []
        assert upsert(4, "x", "y", "z") in (2, None)
        assert refusals == [(Stock, 4, 5, "stale", using)]

    def test_a_repeated_row_is_told_of_where_the_database_counts(self, using, upsert, refusals):
        upsert(5, *"uvwxyz")
        upsert(5, "x", "new")
        assert refusals == ([] if using == "mariadb" else [(Stock, 5, 5, "repeated", using)])
        refusals.clear()
        upsert(5, "x", "new", repeatable=True)
        assert refusals == []

    def test_a_row_is_found_among_more_than_one_look_takes(self, using, upsert, refusals):
        upsert(9, "250")
        upsert(8, *map(str, range(260)))
        assert refusals == [(Stock, 8, 9, "stale", using)]

    def test_nobody_who_does_not_listen_pays(self, using, upsert, django_assert_num_queries):
        upsert(5, "x")
        stale_write_rejected.connect(print, sender=Order)
        try:
            # The statement itself; Django wraps it into a transaction, here a savepoint.
            with django_assert_num_queries(1, using=using):
                upsert(4, "x")
        finally:
            stale_write_rejected.disconnect(print, sender=Order)


@pytest.mark.parametrize("write", ["fenced_save", "fenced_delete"])
def test_of_an_instance_the_reason_is_known_without_asking(using, order, refusals, write):
    counts = []
    for listeners in (True, False):
        if not listeners:
            stale_write_rejected.receivers, kept = [], stale_write_rejected.receivers
            stale_write_rejected.sender_receivers_cache.clear()
        with CaptureQueriesContext(connections[using]) as queries, pytest.raises(StaleToken):
            getattr(order, write)(4)
        counts.append(len(queries))
    stale_write_rejected.receivers = kept
    assert counts[0] == counts[1]
    assert len(refusals) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError, StaleToken])
def test_a_receiver_that_fails_breaks_no_write(using, order, error):
    def receiver(**kwargs):
        raise error

    stale_write_rejected.connect(receiver)
    try:
        assert one(Order, order.pk, using).fenced_update(4) == 0
        assert one(Order, order.pk, using).fenced_delete(4)[0] == 0
        with pytest.raises(StaleToken, match="the row carries 5"):
            order.fenced_save(4)
    finally:
        stale_write_rejected.disconnect(receiver)


def test_a_coroutine_function_that_cannot_be_awaited_breaks_no_write(monkeypatch, caplog):
    async def receiver(**kwargs):
        raise AssertionError("not to be called")

    async def work():
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        return Order.objects.filter(pk=0).fenced_update(5)

    stale_write_rejected.connect(receiver)
    try:
        assert asyncio.run(work()) == 0
    finally:
        stale_write_rejected.disconnect(receiver)
    assert "could not send a signal" in caplog.text


@pytest.mark.django_db(databases=["default"])
def test_a_coroutine_function_is_awaited_where_the_write_was(refusals):
    heard = []

    async def receiver(sender, reason, **kwargs):
        heard.append((sender, reason, asyncio.get_running_loop()))

    async def work():
        await sync_to_async(Order.objects.create)(pk=1)
        await Order.objects.filter(pk=1).afenced_update(5)
        await Order.objects.filter(pk=1).afenced_update(4)
        return asyncio.get_running_loop()

    stale_write_rejected.connect(receiver)
    try:
        # In this thread, where the transaction of the test is.
        loop = async_to_sync(work)()
    finally:
        stale_write_rejected.disconnect(receiver)
    assert heard == [(Order, "stale", loop)]


def test_a_refusal_is_logged_with_what_is_known(using, order, caplog):
    caplog.set_level(logging.INFO, "fenced_locks")
    with pytest.raises(StaleToken):
        order.fenced_save(4)
    (record,) = [one for one in caplog.records if one.name == "fenced_locks.stale_writes"]
    assert (record.levelname, record.fence_resource) == ("INFO", None)
    known = (record.fence_token, record.fence_current, record.fence_model, record.fence_using)
    assert known == (4, 5, "app.Order", using)
