"""What the shop keeps. Both tables carry the `fence_token` column that `FencedModel` adds."""

from django.db import models

from fenced_locks.models import FencedModel


class Order(FencedModel):
    """An order of a customer; its resource is `order:<id>`."""

    class Status(models.TextChoices):
        OPEN = "open"
        CONFIRMED = "confirmed"
        CANCELLED = "cancelled"

    customer = models.CharField(max_length=80)
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.OPEN)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"order {self.pk}"


class Stock(FencedModel):
    """How much of an article is there; its resource is `stock:<sku>`."""

    sku = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)
    quantity = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["sku"]
        verbose_name_plural = "stock"

    def __str__(self) -> str:
        return self.sku
