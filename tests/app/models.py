"""Models to write under a fence: plain, related, inherited, with a manager of their own."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from fenced_locks.models import FencedManager, FencedModel, FencedQuerySet


class Customer(models.Model):
    """What orders are joined with."""

    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name


class Order(FencedModel):
    """The row that everybody fights for."""

    customer = models.ForeignKey(Customer, models.CASCADE, null=True, related_name="orders")
    status = models.CharField(max_length=20, default="new")
    amount = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"order {self.pk}"


class Item(models.Model):
    """The many side: a filter through it finds one order several times."""

    order = models.ForeignKey(Order, models.CASCADE, related_name="items")
    sku = models.CharField(max_length=20)

    def __str__(self) -> str:
        return self.sku


class SpecialOrder(Order):
    """A child with a table of its own."""

    note = models.CharField(max_length=50, default="")


class OrderProxy(Order):
    """A child without a table of its own."""

    class Meta:
        proxy = True


class ParcelQuerySet(FencedQuerySet["Parcel"]):
    """Methods of a user beside ours."""

    def open(self) -> ParcelQuerySet:
        """Narrow to what has not arrived."""
        return self.exclude(status="arrived")


ParcelManager = models.Manager.from_queryset(ParcelQuerySet)


class OpenParcelManager(ParcelManager["Parcel"]):
    """A manager that narrows what it starts from."""

    def get_queryset(self) -> ParcelQuerySet:
        """Leave out what has arrived."""
        return ParcelQuerySet(self.model, using=self._db).open()


class Parcel(FencedModel):
    """A model whose managers are made in each of Django's ways."""

    status = models.CharField(max_length=20, default="sent")

    objects: ClassVar[ParcelManager[Parcel]] = ParcelManager()
    as_manager = ParcelQuerySet.as_manager()
    open_ones = OpenParcelManager()
    fenced = FencedManager()
    fenced_from_queryset = FencedManager.from_queryset(ParcelQuerySet)()

    def __str__(self) -> str:
        return f"parcel {self.pk}"


class Stock(FencedModel):
    """A row that is known by other fields than its key, with fields that set themselves and names of their own."""

    shop = models.CharField(max_length=20, db_column="where")
    sku = models.CharField(max_length=20)
    barcode = models.CharField(max_length=20, null=True, unique=True)  # noqa: DJ001 - unique where there is one
    amount = models.IntegerField(default=0)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "app stock"
        constraints = [models.UniqueConstraint(fields=["shop", "sku"], name="stock_of_a_shop")]

    def __str__(self) -> str:
        return f"{self.sku} in {self.shop}"
