"""``FencedModel``: rows that remember the newest fence token they were written under."""

from __future__ import annotations

from typing import Any

from django.db import models

from .fields import FenceTokenField
from .querysets import FencedQuerySet

__all__ = ["FenceTokenField", "FencedModel", "FencedQuerySet"]


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
