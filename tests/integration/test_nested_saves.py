"""A fenced save in which the instance is saved again: by receivers of its signals, and by a ``save()`` of a user."""

from contextlib import contextmanager

import pytest
from django.db.models.signals import post_save, pre_save
from django.test.utils import isolate_apps

from fenced_locks import StaleToken
from tests.app.models import Order, SpecialOrder

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def order():
    order = Order.objects.create(status="new")
    Order.objects.filter(pk=order.pk).fenced_update(5)
    return Order.objects.get(pk=order.pk)


@contextmanager
def receiving(signal, receive, sender=Order):
    """Have the receiver called once, with the instance."""
    called = []

    def receiver(sender, instance, **details):
        if not called:
            called.append(instance)
            receive(instance)

    signal.connect(receiver, sender=sender)
    try:
        yield
    finally:
        signal.disconnect(receiver, sender=sender)
    assert called


def count(instance):
    instance.amount += 1
    instance.save()


def count_alone(instance):
    instance.amount += 1
    instance.save(update_fields=["amount"])


def stored(instance):
    return Order.objects.values_list("status", "amount", "fence_token").get(pk=instance.pk)


@pytest.mark.parametrize("again", [count, count_alone])
@pytest.mark.parametrize("signal", [pre_save, post_save], ids=["before", "after"])
def test_a_receiver_may_save_it_again_under_the_same_token(order, signal, again):
    order.status = "packed"
    with receiving(signal, again):
        order.fenced_save(10)
    assert stored(order) == ("packed", 1, 10)
    assert order.fence_token == 10
    order.save()


@pytest.mark.parametrize("again", [count, count_alone])
def test_so_may_that_of_a_new_row_and_of_a_multi_table_child(again):
    for model in (Order, SpecialOrder):
        instance = model(status="new")
        with receiving(post_save, again, model):
            instance.fenced_save(10)
        assert stored(instance) == ("new", 1, 10)
        assert instance.fence_token == 10
        with receiving(post_save, again, model):
            instance.fenced_save(11)
        assert stored(instance) == ("new", 2, 11)


def test_a_stale_save_stays_stale_though_a_receiver_saves_under_a_newer_token(order):
    order.status = "stale"

    def save_newer(instance):
        instance.status = "newer"
        instance.fenced_save(20)
        instance.status = "stale"

    with pytest.raises(StaleToken) as refused, receiving(pre_save, save_newer):
        order.fenced_save(7)
    assert (refused.value.token, refused.value.current) == (7, 20)
    assert stored(order) == ("newer", 0, 20)
    assert "_fence" not in vars(order)


def test_the_instance_has_the_greatest_token_that_its_row_was_saved_under(order):
    with receiving(post_save, lambda instance: instance.fenced_save(11)):
        order.fenced_save(10)
    assert stored(order)[2] == order.fence_token == 11
    with receiving(pre_save, lambda instance: instance.fenced_save(12)):
        order.fenced_save(13)
    assert stored(order)[2] == order.fence_token == 13
    order.save()


def test_a_receiver_that_names_the_very_token_is_refused_and_the_next_save_is_plain(order):
    with (
        pytest.raises(StaleToken, match="fence token 10 is stale: the row carries 10"),
        receiving(post_save, lambda instance: instance.fenced_save(10)),
    ):
        order.fenced_save(10)
    assert "_fence" not in vars(order)
    order.refresh_from_db()
    Order.objects.filter(pk=order.pk).fenced_update(11)
    with pytest.raises(StaleToken, match="was loaded at fence token 10"):
        order.save()


@isolate_apps("tests.app")
def test_a_save_of_a_user_may_write_in_two_steps(order):
    class Stepwise(Order):
        class Meta:
            proxy = True
            app_label = "app"

        def save(self, **options):
            super().save(**options)
            self.amount += 1
            super().save(update_fields=["amount"])

    mine = Stepwise.objects.get(pk=order.pk)
    mine.status = "packed"
    mine.fenced_save(10)
    assert stored(order) == ("packed", 1, 10)
    Stepwise(pk=order.pk + 1, status="sent").fenced_save(10)
    assert Order.objects.values_list("status", "amount", "fence_token").get(pk=order.pk + 1) == ("sent", 1, 10)
