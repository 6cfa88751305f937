"""
What ``save()`` does on a fenced model. Everything that leans on Django's private ``Model._do_update`` is here.

Django calls ``_do_update(base_qs, using, pk_val, values, …)`` once for each table of an instance, with the rows to
choose from and the values to write as ``(field, None, value)``; or ``_do_insert(manager, …)`` for a new row. Further
arguments differ between versions.

A receiver of ``pre_save`` or ``post_save``, or a ``save()`` of a user, may save the instance again meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from django.core.exceptions import ObjectDoesNotExist
from django.db import models, transaction

from . import locked_writes
from .exceptions import StaleToken
from .fields import FenceTokenField


class Fence(NamedTuple):
    """The token of a fenced save, and whether the row may carry it already."""

    token: int
    repeatable: bool


@contextmanager
def fencing(instance: models.Model, fence: Fence) -> Iterator[None]:
    """Make the saves of this instance fenced; those of a fenced save around this one have its fence again then."""
    outer = instance.__dict__.get("_fence")
    instance.__dict__["_fence"] = fence
    try:
        yield
    finally:
        if outer is None:
            del instance.__dict__["_fence"]
        else:
            instance.__dict__["_fence"] = outer


def note_write(instance: models.Model, model: type[models.Model]) -> None:
    """The row in this table was written: saved again within the same fenced save, it carries the token already."""
    fence: Fence | None = instance.__dict__.get("_fence")
    if fence is not None and model is locked_writes.fence_owner(type(instance)):
        instance.__dict__["_fence"] = fence._replace(repeatable=True)


def fenced(instance: models.Model, rows: Any, values: list[Any]) -> tuple[Any, list[Any]]:
    """Return the rows that one UPDATE of ``save()`` may write, and the values to write."""
    kept = [entry for entry in values if not isinstance(entry[0], FenceTokenField)]
    if rows.model is not locked_writes.fence_owner(type(instance)):
        return rows, kept
    fence: Fence | None = instance.__dict__.get("_fence")
    if fence is not None:
        written = (rows.model._meta.get_field("fence_token"), None, fence.token)
        return locked_writes.admitting(rows, fence.token, repeatable=fence.repeatable), [*kept, written]
    loaded = _loaded_token(instance)
    return (rows if loaded is None else locked_writes.admitting(rows, loaded, repeatable=True)), kept


def raise_if_refused(instance: models.Model, rows: Any) -> None:
    """
    After an UPDATE that found no row: raise if it was the fence that refused it.

    Raises:
        StaleToken: The row carries a newer token than the save or, for a plain one, than the loaded instance.
        DoesNotExist: A fenced save of a loaded instance, and there is no such row.
    """
    if rows.model is not locked_writes.fence_owner(type(instance)):
        return
    fence: Fence | None = instance.__dict__.get("_fence")
    if fence is not None:
        error = refusal(instance, rows, fence.token)
        if instance._state.adding and not isinstance(error, StaleToken):
            # Of a new child with a key of its own Django looks for its parent's row first, and inserts that next.
            return
        raise error
    loaded = _loaded_token(instance)
    current = None if loaded is None else _current_token(rows)
    if current is not None and loaded is not None and current > loaded:
        raise StaleToken(
            f"{instance!r} was loaded at fence token {loaded} and its row carries {current} by now: it was written "
            "under a lock since, and saving would overwrite that; load it again, or use fenced_save(token)",
            token=loaded,
            current=current,
        )


@contextmanager
def usable_after_refusal(model: type[models.Model], using: str) -> Iterator[None]:
    """Undo Django's mark that a transaction in which a save failed can only be rolled back."""
    connection = transaction.get_connection(using)
    if not connection.in_atomic_block:
        yield
    elif locked_writes.fence_owner(model)._meta.parents:
        # The tables of its parents were written first.
        with transaction.atomic(using=using):
            yield
    else:
        before = connection.needs_rollback
        try:
            yield
        except (StaleToken, ObjectDoesNotExist):
            connection.needs_rollback = before
            raise


def refusal(instance: models.Model, rows: Any, token: int) -> StaleToken | ObjectDoesNotExist:
    """Return the error for a fenced write of one row that changed nothing."""
    current = _current_token(rows)
    if current is None:
        missing: ObjectDoesNotExist = cast("Any", type(instance)).DoesNotExist(f"{instance!r} has no row any more")
        return missing
    return StaleToken(token=token, current=current)


def _loaded_token(instance: models.Model) -> int | None:
    """Return the token that the instance was loaded with; None if it is deferred or the check is off."""
    if not getattr(getattr(type(instance), "Fence", None), "check_saves", True):
        return None
    loaded = instance.__dict__.get("fence_token")
    return loaded if isinstance(loaded, int) else None


def _current_token(rows: Any) -> int | None:
    token: int | None = locked_writes.present(rows).values_list("fence_token", flat=True).first()
    return token
