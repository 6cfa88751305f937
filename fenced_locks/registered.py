"""The setting ``MODELS``: which rows carry the tokens of a resource."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, FieldError, ImproperlyConfigured, ValidationError
from django.db import models, router, transaction

from . import locked_writes
from .comparison import Row
from .conf import conf
from .querysets import FencedQuerySet
from .templates import ResourceTemplate

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
        Yield the rows that are written under a resource, by primary key.

        Raises:
            django.db.Error: They cannot be read.
        """
        lookups = _lookups(self.template)
        found: dict[Any, Row] = {}
        for texts in self.template.parse(resource):
            values = self._values(dict(zip(lookups, texts, strict=True)), lookups)
            # What the database takes for equal may be another resource: upper case, other digits.
            found |= {pk: Row(pk, resource, token) for pk, token, *named in values if self._is(resource, named)}
        yield from (found[pk] for pk in sorted(found))

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

    def _values(self, conditions: dict[str, str], lookups: list[str]) -> list[tuple[Any, ...]]:
        rows = self.model._base_manager.using(self.database)
        try:
            return list(rows.filter(**conditions).order_by("pk").values_list("pk", "fence_token", *lookups))
        except (ValidationError, ValueError, OverflowError):
            # A text that no value of the field has.
            return []

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


def registered(label: str, text: str) -> Registered:
    """
    Return one entry of the setting.

    Raises:
        ImproperlyConfigured: It cannot be used.
    """
    try:
        model = apps.get_model(label)
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
