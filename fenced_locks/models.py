"""``FencedModel``: rows that remember the newest fence token they were written under."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import sync_to_async
from django.db import models, router

from . import plain_saves, stale_writes
from .arguments import checked_flag, checked_names
from .fields import ExactCharField, FenceTokenField, checked_token
from .managers import FencedManager, default_manager
from .querysets import FencedQuerySet
from .refusals import refused_as_stale
from .typed import MYPY

__all__ = ["FenceCounter", "FenceTokenField", "FencedManager", "FencedModel", "FencedQuerySet", "Lock"]


class FencedModel(models.Model):
    """
    Abstract base of models whose rows are written under a lock.

    ``fence_token`` is the newest token that a row was written under, 0 before the first. Fenced writes refuse
    smaller ones. A plain ``save()`` leaves the column of an existing row alone, and raises ``StaleToken`` if a fenced
    write has moved the row on since the instance was loaded; an inner class turns that off::

        class Order(FencedModel):
            class Fence:
                check_saves = False
    """

    fence_token = FenceTokenField()

    objects = default_manager()

    class Meta:
        abstract = True

    if TYPE_CHECKING and not MYPY:
        # Any class, or each Meta of a user would be one that does not derive from this one.
        Meta: ClassVar[Any]

    def fenced_save(
        self,
        token: int,
        /,
        *,
        update_fields: Iterable[str] | None = None,
        using: str | None = None,
        repeatable: bool = False,
    ) -> None:
        """
        Save this instance if its row carries a smaller token, and give the row this one; or insert a new row with it.

        Signals, ``auto_now`` and the like work as in ``save()``. ``fence_token`` of the instance is set on success
        only.

        Args:
            token: The fence token of the lease.
            update_fields: As for ``save()``.
            using: Database alias.
            repeatable: Admit a row that carries this very token.

        Raises:
            TypeError: ``token`` is not an int, ``repeatable`` no bool, or ``update_fields`` no names in a list.
            ValueError: ``token`` is out of range, or ``update_fields`` are given for a new row or name none of its
                fields.
            StaleToken: The row carries a newer token, or this one; the error tells both.
            DoesNotExist: The model's own: there is no such row any more.
        """
        fence = plain_saves.Fence(checked_token(token), checked_flag("repeatable", repeatable))
        before = self.__dict__.get("fence_token")
        new = self._state.adding
        if update_fields is not None:
            names = checked_names("update_fields", update_fields)
            if new:
                raise ValueError(f"update_fields must be None for a row that is to be inserted; got {names!r}")
            # Told of no fields, save() would do nothing.
            update_fields = [*names, "fence_token"]
        alias = using or router.db_for_write(type(self), instance=self)
        try:
            if new:
                self.fence_token = fence.token
            with plain_saves.fencing(self, fence), refused_as_stale(fence.token, type(self), alias):
                self.save(force_insert=new, force_update=not new, using=using, update_fields=update_fields)
            # A receiver may have saved it under a greater one since.
            present = self.__dict__.get("fence_token")
            if present == before or not (isinstance(present, int) and present > fence.token):
                self.fence_token = fence.token
        except BaseException:
            if new and before is not None:
                self.fence_token = before
            raise

    fenced_save.alters_data = True  # type: ignore[attr-defined]

    async def afenced_save(
        self,
        token: int,
        /,
        *,
        update_fields: Iterable[str] | None = None,
        using: str | None = None,
        repeatable: bool = False,
    ) -> None:
        """The same as ``fenced_save``, in a thread."""
        save = sync_to_async(self.fenced_save)
        await save(token, update_fields=update_fields, using=using, repeatable=repeatable)

    afenced_save.alters_data = True  # type: ignore[attr-defined]

    def fenced_delete(
        self, token: int, /, *, using: str | None = None, repeatable: bool = False
    ) -> tuple[int, dict[str, int]]:
        """
        Delete the row of this instance if it carries a smaller token; see ``FencedQuerySet.fenced_delete``.

        Raises:
            TypeError, ValueError: ``token`` is none, ``repeatable`` no bool, or the instance was never saved.
            StaleToken: The row carries a newer token, or this one.
            DoesNotExist: The model's own: there is no such row any more.
        """
        token = checked_token(token)
        checked_flag("repeatable", repeatable)
        if self.pk is None:
            raise ValueError(f"{self!r} cannot be deleted: it has no primary key")
        alias = using or router.db_for_write(type(self), instance=self)
        rows: FencedQuerySet[Any] = FencedQuerySet(type(self), using=alias).filter(pk=self.pk)
        with stale_writes.told(type(self), alias):
            deleted = rows._delete_fenced(token, repeatable=repeatable)
            if not deleted[0]:
                raise plain_saves.refusal(self, rows, token)
        self.pk = None
        return deleted

    fenced_delete.alters_data = True  # type: ignore[attr-defined]

    async def afenced_delete(
        self, token: int, /, *, using: str | None = None, repeatable: bool = False
    ) -> tuple[int, dict[str, int]]:
        """The same as ``fenced_delete``, in a thread."""
        return await sync_to_async(self.fenced_delete)(token, using=using, repeatable=repeatable)

    afenced_delete.alters_data = True  # type: ignore[attr-defined]

    def save_base(
        self,
        raw: bool = False,
        force_insert: Any = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Iterable[str] | None = None,
    ) -> None:
        """As Django's; a refusal leaves the transaction around it usable, since nothing was written."""
        alias = using or router.db_for_write(type(self), instance=self)
        with (
            stale_writes.told(type(self), alias),
            plain_saves.usable_after_refusal(type(self), alias),
        ):
            super().save_base(raw, force_insert, force_update, alias, update_fields)

    def _do_update(
        self, base_qs: Any, using: Any, pk_val: Any, values: Any, update_fields: Any, *args: Any, **kwargs: Any
    ) -> Any:
        rows, kept = plain_saves.fenced(self, base_qs, values)
        if values and not kept:
            # Told of no fields, Django looks whether the row is there.
            update_fields = None
        result = super()._do_update(rows, using, pk_val, kept, update_fields, *args, **kwargs)
        if result:
            plain_saves.note_write(self, base_qs.model)
        else:
            plain_saves.raise_if_refused(self, base_qs.filter(pk=pk_val))
        return result

    def _do_insert(self, manager: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._do_insert(manager, *args, **kwargs)  # type: ignore[misc]
        plain_saves.note_write(self, manager.model)
        return result


# Named here, Lock would make mypy look at the models twice, and forget whose the default manager is.
class _NoRows(models.Manager[Any]):
    def get_queryset(self) -> models.QuerySet[Any]:
        """Return nothing, without a query: ``dumpdata`` and the like ask every model."""
        return super().get_queryset().none()


class Lock(models.Model):
    """What the page "Fenced locks" of the admin and its permissions belong to. It has no table and no rows."""

    resource = models.TextField(primary_key=True)

    objects = _NoRows()

    class Meta:
        app_label = "fenced_locks"
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = [("release_lock", "Can release fenced lock")]
        verbose_name = "fenced lock"
        verbose_name_plural = "fenced locks"

    def __str__(self) -> str:
        return self.resource


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
