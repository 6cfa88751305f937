"""Models and managers as users write them, checked by mypy strict with django-stubs, and by pyright; never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from typing_extensions import Self, assert_type

from fenced_locks.models import FencedManager, FencedModel, FencedQuerySet

if TYPE_CHECKING:
    from collections.abc import Sequence


class Customer(models.Model):
    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name


class Order(FencedModel):
    """The usual one: it names no manager."""

    customer = models.ForeignKey(Customer, models.CASCADE)
    status = models.CharField(max_length=20)

    class Meta:
        ordering = ["status"]


class ParcelQuerySet(FencedQuerySet["Parcel"]):
    """Methods of a user beside ours."""

    def open(self) -> Self:
        return self.exclude(status="arrived")

    def send(self, token: int) -> int:
        return self.open().fenced_update(token, status="sent")


class Parcel(FencedModel):
    status = models.CharField(max_length=20)

    objects = ParcelQuerySet.as_manager()


LetterManager = FencedManager.from_queryset(ParcelQuerySet)


class Letter(FencedModel):
    objects = LetterManager()


class OpenManager(FencedManager["Ticket"]):
    """A manager of a user, which narrows what it starts from."""

    def get_queryset(self) -> FencedQuerySet[Ticket]:
        return super().get_queryset().filter(is_open=True)

    def close(self, token: int) -> int:
        return self.fenced_update(token, is_open=False)


class Ticket(FencedModel):
    is_open = models.BooleanField(default=True)

    objects = OpenManager()


def of_the_default_manager(token: int) -> None:
    assert_type(Order.objects.filter(pk=1).fenced_update(token, status="sent"), int)
    assert_type(Order.objects.exclude(pk=1).order_by("pk").fenced_delete(token), tuple[int, dict[str, int]])
    assert_type(Order.objects.fenced_update(token), int)
    assert_type(Order.objects.get(pk=1), Order)
    assert_type(Order.objects.fenced_get_or_create(token, pk=1), tuple[Order, bool])
    assert_type(Order.objects.using("default").fenced_update_or_create(token, {}, pk=1), tuple[Order, bool])
    orders: FencedQuerySet[Order] = Order.objects.select_related("customer").filter(customer__name="Ada")
    assert_type(orders.first(), Order | None)
    order = Order()
    current: int = order.fence_token
    order.fenced_save(current + 1, update_fields=["status"])
    assert_type(order.fenced_delete(token), tuple[int, dict[str, int]])


async def awaited(token: int) -> None:
    assert_type(await Order.objects.afenced_update(token, status="sent"), int)
    assert_type(await Order.objects.filter(pk=1).afenced_update(token, status="sent"), int)
    assert_type(await Order.objects.afenced_get_or_create(token, pk=1), tuple[Order, bool])


def of_managers_of_users(token: int) -> None:
    assert_type(Parcel.objects.open().fenced_update(token, status="sent"), int)
    assert_type(Parcel.objects.filter(pk=1).open().send(token), int)
    assert_type(Letter.objects.open().fenced_update(token), int)
    assert_type(Letter.objects.filter(pk=1).send(token), int)
    assert_type(Letter.objects.fenced_update(token), int)
    assert_type(Ticket.objects.close(token), int)
    assert_type(Ticket.objects.filter(pk=1).get(), Ticket)
    assert_type(Ticket.objects.all().fenced_update(token, is_open=True), int)


def upserts(parcels: Sequence[Parcel], token: int) -> None:
    written = Parcel.objects.fenced_bulk_upsert(parcels, token, unique_fields=["pk"], update_fields=["status"])
    assert_type(written, int | None)
