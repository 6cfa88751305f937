"""The ways to write a row, what each of them promises, and the row that they write."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections

from fenced_locks.triggers import Trigger, triggers_for
from fenced_locks.triggers.base import default_name
from tests.app.models import Customer, Item, Order, SpecialOrder, Stock

STALE, NEWER = 5, 10

# Token, amount, and what has changed in other tables.
UNTOUCHED = (0, 1, "")
NEWEST = (NEWER, NEWER, "")

Found = tuple[int, int, str] | None


class Law(enum.Enum):
    """What a write path promises to the newer writer."""

    FENCED = "the row is as the newer writer left it"
    REFUSED = "the same, and it is refused in any case"
    PLAIN = "the token does not fall"
    NONE = "nothing, by its documentation"


@dataclass(frozen=True)
class Row:
    """One row, and an instance that was loaded before anybody wrote it."""

    using: str
    instance: Any

    @property
    def rows(self) -> Any:
        """All rows of its model."""
        return type(self.instance)._default_manager.using(self.using)

    @property
    def own(self) -> Any:
        """A queryset of this row."""
        return self.rows.filter(pk=self.instance.pk)

    @property
    def changed(self) -> Any:
        """The instance, with what the stale writer wants."""
        self.instance.amount = STALE
        if isinstance(self.instance, SpecialOrder):
            self.instance.note = "stale"
        return self.instance

    @property
    def key(self) -> dict[str, Any]:
        """What the row is known by."""
        return {"shop": self.instance.shop, "sku": self.instance.sku}

    def found(self) -> Found:
        """What is in the database; None is no row."""
        row = self.own.first()
        return row and (row.fence_token, row.amount, _elsewhere(row))

    def write_newer(self) -> None:
        """Write it under the newer token."""
        model = Order if isinstance(self.instance, Order) else Stock
        rows = model._default_manager.using(self.using).filter(pk=self.instance.pk)
        assert rows.fenced_update(NEWER, amount=NEWER) == 1

    def sql(self, assignments: str) -> None:
        """Write it by SQL."""
        quote = connections[self.using].ops.quote_name
        table = quote(type(self.instance)._meta.db_table)
        with connections[self.using].cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {assignments} WHERE id = %s", [self.instance.pk])


def _elsewhere(row: Any) -> str:
    if isinstance(row, SpecialOrder):
        return row.note
    return "" if isinstance(row, Stock) or row.items.exists() else "no items"


_numbers = itertools.count()


def _stock(using: str) -> Any:
    return Stock.objects.using(using).create(shop="a", sku=str(next(_numbers)), amount=1)


def _order(using: str) -> Any:
    order = Order.objects.using(using).create(customer=_customer(using), amount=1)
    Item.objects.using(using).create(order=order, sku="a")
    return order


def _special(using: str) -> Any:
    return SpecialOrder.objects.using(using).create(customer=_customer(using), amount=1)


def _customer(using: str) -> Customer:
    return Customer.objects.using(using).get_or_create(name="Ada")[0]


@dataclass(frozen=True)
class WritePath:
    """A way to write; ``strict`` is that of the fence guard on the table, if there is one."""

    name: str
    law: Law
    write: Callable[[Row], Any]
    make: Callable[[str], Any] = _stock
    strict: bool | None = None

    @contextmanager
    def guarded(self, using: str) -> Iterator[None]:
        """Have the guard on the table, for a path that is to meet one."""
        if self.strict is None:
            yield
            return
        table = Stock._meta.db_table
        trigger = Trigger(default_name(table), table, "fence_token", self.strict)
        triggers = triggers_for(connections[using])
        execute(using, *triggers.create(trigger))
        try:
            yield
        finally:
            execute(using, *triggers.drop(trigger))


def _update_or_create(row: Row) -> Any:
    return row.rows.fenced_update_or_create(STALE, {"amount": STALE}, **row.key)


def _upsert(row: Row) -> Any:
    objs = [Stock(amount=STALE, **row.key)]
    return row.rows.fenced_bulk_upsert(objs, STALE, unique_fields=["shop", "sku"], update_fields=["amount"])


def _plain_upsert(row: Row) -> None:
    target = {} if connections[row.using].vendor == "mysql" else {"unique_fields": ["shop", "sku"]}
    objs = [Stock(amount=STALE, **row.key)]
    row.rows.bulk_create(objs, update_conflicts=True, update_fields=["amount"], **target)


def _base(row: Row) -> Any:
    return Stock._base_manager.using(row.using).filter(pk=row.instance.pk).update(fence_token=0, amount=STALE)


def _lower(row: Row) -> None:
    row.sql(f"amount = {STALE}, fence_token = {STALE}")


def _leave(row: Row) -> None:
    row.sql(f"amount = {STALE}")


def _join(row: Row) -> Any:
    return row.own.filter(customer__name="Ada")


PATHS = [
    WritePath("`fenced_update()`", Law.FENCED, lambda row: row.own.fenced_update(STALE, amount=STALE)),
    WritePath(
        "`fenced_update()` across a join",
        Law.FENCED,
        lambda row: _join(row).fenced_update(STALE, amount=STALE),
        _order,
    ),
    WritePath(
        "`fenced_update()` of a multi-table child",
        Law.FENCED,
        lambda row: row.own.fenced_update(STALE, amount=STALE, note="stale"),
        _special,
    ),
    WritePath("`fenced_delete()`", Law.FENCED, lambda row: row.own.fenced_delete(STALE)),
    WritePath("`fenced_delete()` with dependants", Law.FENCED, lambda row: row.own.fenced_delete(STALE), _order),
    WritePath("`fenced_update_or_create()`", Law.FENCED, _update_or_create),
    WritePath("`fenced_bulk_upsert()`", Law.FENCED, _upsert),
    WritePath("`instance.fenced_save()`", Law.FENCED, lambda row: row.changed.fenced_save(STALE)),
    WritePath(
        "`instance.fenced_save()` of a multi-table child",
        Law.FENCED,
        lambda row: row.changed.fenced_save(STALE),
        _special,
    ),
    WritePath("`instance.fenced_delete()`", Law.FENCED, lambda row: row.instance.fenced_delete(STALE)),
    WritePath("`save()`", Law.FENCED, lambda row: row.changed.save()),
    WritePath("`save()` of a multi-table child", Law.FENCED, lambda row: row.changed.save(), _special),
    WritePath("`update_or_create()`", Law.PLAIN, lambda row: row.rows.update_or_create({"amount": STALE}, **row.key)),
    WritePath("`update()`", Law.PLAIN, lambda row: row.own.update(amount=STALE)),
    WritePath("`bulk_update()`", Law.PLAIN, lambda row: row.rows.bulk_update([row.changed], ["amount"])),
    WritePath("`bulk_create(update_conflicts=True)`", Law.PLAIN, _plain_upsert),
    WritePath("`delete()`", Law.PLAIN, lambda row: row.own.delete()),
    WritePath("`update(fence_token=…)`", Law.REFUSED, lambda row: row.own.update(fence_token=0, amount=STALE)),
    WritePath("`_base_manager`, `update(fence_token=…)`", Law.NONE, _base),
    WritePath("the same, with a fence guard", Law.FENCED, _base, strict=False),
    WritePath("SQL that lowers the token", Law.NONE, _lower),
    WritePath("the same, with a fence guard", Law.FENCED, _lower, strict=False),
    WritePath("SQL that leaves the token", Law.PLAIN, _leave),
    WritePath("the same, with a strict fence guard", Law.REFUSED, _leave, strict=True),
]


def execute(using: str, *statements: str) -> None:
    """Run SQL."""
    with connections[using].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
