"""The setting ``MODELS``: which rows carry the tokens of a resource."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, FieldError, ImproperlyConfigured, ValidationError
from django.db import DataError, models, router, transaction

from . import locked_writes
from .comparison import Row
from .conf import conf
from .querysets import FencedQuerySet
from .templates import ResourceTemplate

# Each takes a query.
_MOST_READINGS = 1000
_ROWS_AT_ONCE = 500
_UNUSABLE = (FieldDoesNotExist, FieldError, LookupError, TypeError, ValueError)


class Registered(NamedTuple):
    """A model, and the resource under which each of its rows is written: ``"order:<pk>"``."""

    model: type[models.Model]
    template: ResourceTemplate

    @property
    def database(self) -> str:
        """The database that the rows are written in."""
        return router.db_for_write(self.model)

    def rows(self, resource: str) -> Iterator[Row]:
        """
        Yield the rows that are written under a resource, each once, as they are read.

        Raises:
            django.db.Error: They cannot be read.
            ImproperlyConfigured: The name can be read as too many rows: ``"a:::::::b"`` as ``"<x>:<y>:<z>"``.
        """
        lookups = _lookups(self.template)
        seen = set()
        for number, texts in enumerate(self.template.parse(resource)):
            if number == _MOST_READINGS:
                raise ImproperlyConfigured(
                    f"FENCED_LOCKS['MODELS'][{self.model._meta.label!r}]: {resource!r} can be read as "
                    f"{self.template.text!r} in more than {_MOST_READINGS} ways"
                )
            for pk, token, *named in self._values(dict(zip(lookups, texts, strict=True)), lookups):
                # What the database takes for equal may be another resource: upper case, other digits.
                if pk not in seen and self._is(resource, named):
                    seen.add(pk)
                    yield Row(pk, resource, token)

    def outdate(self, resource: str, token: int) -> int:
        """
        Give ``token`` to the rows of a resource that carry a smaller one; return how many rows carry it now.

        Does not wait for rows that somebody else has locked.

        Raises:
            django.db.Error: They cannot be written.
        """
        keys = [row.pk for row in self.rows(resource)]
        rows: Any = FencedQuerySet(self.model, using=self.database)
        changed = 0
        for batch in locked_writes.batches(keys):
            with transaction.atomic(using=self.database):
                admitted = locked_writes.lock(rows.filter(pk__in=batch).select_for_update(nowait=True), token)
                changed += locked_writes.write(rows, admitted, token, {})
        return changed

    def _values(self, conditions: dict[str, str], lookups: list[str]) -> Iterator[tuple[Any, ...]]:
        rows = self.model._base_manager.using(self.database)
        last: tuple[Any, ...] | None = None
        while True:
            try:
                # A savepoint: what PostgreSQL refuses would end the transaction of a request.
                with transaction.atomic(using=self.database):
                    found = rows.filter(**conditions, **({} if last is None else {"pk__gt": last[0]})).order_by("pk")
                    page = list(found.values_list("pk", "fence_token", *lookups)[:_ROWS_AT_ONCE])
            except (ValidationError, ValueError, OverflowError, DataError):
                # A text that no value of the field has.
                return
            yield from page
            if len(page) < _ROWS_AT_ONCE:
                return
            last = page[-1]

    def _is(self, resource: str, values: list[Any]) -> bool:
        try:
            return self.template.fill(values) == resource
        except ValueError:
            return False


def registered_models() -> list[Registered]:
    """
    Return what the setting names.

    Raises:
        ImproperlyConfigured: It names a model or a field that does not exist; the message says which.
    """
    return [registered(label, text) for label, text in conf.MODELS.items()]


def model_named(label: str) -> type[models.Model]:
    """
    Return a model by the names of its app and its own: ``"shop.Order"``.

    Raises:
        LookupError: There is none.
    """
    if label.count(".") != 1:
        raise LookupError(f"a model is named by its app and its own name, like 'shop.Order'; got {label!r}")
    return apps.get_model(label)


def registered(label: str, text: str) -> Registered:
    """
    Return one entry of the setting.

    Raises:
        ImproperlyConfigured: It cannot be used.
    """
    try:
        model = model_named(label)
        model._meta.get_field("fence_token")
        template = ResourceTemplate(text)
        model._base_manager.values_list(*_lookups(template))
    except _UNUSABLE as error:
        # A KeyError, which Django's LookupErrors may be, shows its message in quotes.
        reason = str(error.args[0] if error.args else error)
        raise ImproperlyConfigured(f"FENCED_LOCKS['MODELS'][{label!r}]: {reason}") from error
    return Registered(model, template)


def _lookups(template: ResourceTemplate) -> list[str]:
    return [name.replace(".", "__") for name in template.names]
