"""MariaDB at REPEATABLE READ: a transaction that has read a row goes on seeing it as it was."""

import pytest
from django.db import connections, transaction

from fenced_locks import StaleToken
from fenced_locks.signals import stale_write_rejected
from tests.app.models import Customer, Order
from tests.helpers import run_threads, wait_until

pytestmark = pytest.mark.django_db(databases=["default", "mariadb"], transaction=True)

rows = Order.objects.using("mariadb")


@pytest.fixture
def order():
    return rows.create(customer=Customer.objects.using("mariadb").create(name="Ada"))


def after_a_newer_write(order, write):
    """Run ``write`` in a transaction that read the order before somebody wrote it under token 10."""

    def late():
        with connections["mariadb"].cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic(using="mariadb"):
            read = rows.get(pk=order.pk)
            has_read.append(True)
            wait_until(lambda: written)
            return write(read)

    def newer():
        wait_until(lambda: has_read)
        rows.filter(pk=order.pk).fenced_update(10, status="newer")
        written.append(True)

    has_read, written = [], []
    result = run_threads(late, newer)[0]
    order.refresh_from_db()
    assert (order.fence_token, order.status) == (10, "newer")
    return result


@pytest.mark.parametrize("write", [Order.save, lambda o: o.fenced_save(5), lambda o: o.fenced_delete(5)])
def test_a_stale_instance_is_refused_and_the_error_tells_the_newer_token(order, write):
    def refused(read):
        with pytest.raises(StaleToken) as caught:
            write(read)
        return caught.value.current

    assert after_a_newer_write(order, refused) == 10


@pytest.mark.parametrize("write", ["fenced_update", "fenced_delete"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_stale_queryset_changes_nothing_and_the_signal_tells_why(order, write, joined):
    reasons = []

    def receiver(reason, current, **kwargs):
        reasons.append((reason, current))

    def refused(read):
        mine = rows.filter(customer__name="Ada") if joined else rows.filter(pk=order.pk)
        return getattr(mine, write)(5)

    stale_write_rejected.connect(receiver)
    try:
        assert after_a_newer_write(order, refused) in (0, (0, {}))
    finally:
        stale_write_rejected.disconnect(receiver)
    assert reasons == [("stale", 10)]
