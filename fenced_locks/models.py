"""``FencedModel``: rows that remember the newest fence token they were written under."""

from __future__ import annotations

from typing import Any

from django.db import models

from .fields import ExactCharField, FenceTokenField
from .querysets import FencedQuerySet

__all__ = ["FenceCounter", "FenceTokenField", "FencedModel", "FencedQuerySet"]


class FencedModel(models.Model):
    """
    Abstract base of models whose rows are written under a lock.

    ``fence_token`` is the newest token that a row was written under, 0 before the first. ``fenced_update()`` on the
    queryset refuses smaller ones; a plain ``save()`` leaves the column of an existing row alone.
    """

    fence_token = FenceTokenField()

    objects = FencedQuerySet.as_manager()

    class Meta:
        abstract = True

    def _do_update(self, base_qs: Any, using: Any, pk_val: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        # Django's private hook for the UPDATE of save(): an instance that was loaded earlier carries an old token.
        kept = [entry for entry in values if not isinstance(entry[0], FenceTokenField)]
        return super()._do_update(base_qs, using, pk_val, kept, *args, **kwargs)


class FenceCounter(models.Model):
    """
    The last token of a resource, for the issuer ``database``: one row per lock name, made by the first grant.

    Rows are never deleted: a counter that starts again hands out tokens that rows of the resource have seen.
    """

    # What every supported database can index.
    MAX_LENGTH = 255

    resource = ExactCharField(max_length=MAX_LENGTH, primary_key=True)
    token = models.BigIntegerField()

    class Meta:
        # Without it, whoever has not installed the app could not import FencedModel.
        app_label = "fenced_locks"

    def __str__(self) -> str:
        return f"{self.resource}: {self.token}"
