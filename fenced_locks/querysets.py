"""Fenced writes: the database refuses a write that carries a smaller token than its row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import NotSupportedError, models, transaction
from django.db.models.deletion import Collector

from . import locked_writes, stale_writes, upserts
from .arguments import checked_flag, checked_names
from .fields import checked_token
from .refusals import refused_as_stale
from .signals import stale_write_rejected
from .typed import MYPY

if TYPE_CHECKING and not MYPY:
    from typing_extensions import Self

    from .typed import ManagerOf

M = TypeVar("M", bound=models.Model)
Values = Mapping[str, Any] | None


class FencedQuerySet(models.QuerySet[M]):
    """A queryset with fenced writes, for a ``FencedModel``; also through ``as_manager()`` and ``from_queryset()``."""

    if TYPE_CHECKING and not MYPY:

        @classmethod
        def as_manager(cls) -> ManagerOf[Self]: ...

    # Set on a queryset whose conditions hold the fence, for its one update().
    writes_fence = False

    def fenced_update(self, token: int, /, *, repeatable: bool = False, **fields: Any) -> int:
        """
        Update the rows of this queryset whose fence token is smaller than ``token``, and give them that token.

        Check and write are one statement on the row itself, so a row that a newer holder has written, or is
        writing, is left alone, whatever the isolation level. With a join in the queryset, or for a multi-table
        child, the rows are locked first and the conditions of the queryset are read again from the locked rows, in
        one transaction.

        Args:
            token: The fence token of the lease under which the row is written.
            repeatable: Admit rows that carry this very token, for a holder that writes a row more than once. A retry
                of ``F("balance") + 10`` then adds twice.
            **fields: What to set, as for ``update()``. Without any, the rows only get the token.

        Returns:
            The number of rows changed. 0 means stale, or written with this token before, or that no row meets the
            conditions; the signal ``stale_write_rejected`` tells which.

        Raises:
            TypeError: ``token`` is not an int or ``repeatable`` no bool, or the queryset is sliced or distinct on
                fields.
            ValueError: ``token`` is out of range, or ``fence_token`` is among the fields.
            NotSupportedError: The queryset is combined by ``union()`` and the like.
            StaleToken: A strict guard in the database refused an equal token.
            FieldDoesNotExist, FieldError: From ``django.core.exceptions``, as ``update()``.
            django.db.OperationalError: Where rows are locked first: a deadlock with writers that lock in another
                order, or a serialization failure under REPEATABLE READ and above. Nothing was written; try again.
        """
        token = checked_token(token)
        checked_flag("repeatable", repeatable)
        self._refuse_what_cannot_be_fenced(fields)
        self._for_write = True
        with refused_as_stale(token, self.model, self.db):
            changed = self._write_fenced(token, fields, repeatable=repeatable)
        self._result_cache = None
        if not changed:
            self._report_refusal(token)
        return changed

    fenced_update.alters_data = True  # type: ignore[attr-defined]

    async def afenced_update(self, token: int, /, *, repeatable: bool = False, **fields: Any) -> int:
        """The same as ``fenced_update``, in a thread."""
        return await sync_to_async(self.fenced_update)(token, repeatable=repeatable, **fields)

    afenced_update.alters_data = True  # type: ignore[attr-defined]

    def fenced_delete(self, token: int, /, *, repeatable: bool = False) -> tuple[int, dict[str, int]]:
        """
        Delete the rows of this queryset whose fence token is smaller than ``token``.

        Where Django needs one DELETE, this is one; where it has to collect what depends on the rows, they are locked
        first and everything happens in one transaction. The row's memory of its token goes with it: a row that is
        created again under the same key starts anew, so prefer a column that says "deleted" where a late write must
        still be refused.

        Args:
            token: The fence token of the lease.
            repeatable: Admit rows that carry this very token.

        Returns:
            As ``delete()``: the number of objects deleted, and the numbers by model.

        Raises:
            TypeError, ValueError: As ``fenced_update()``; also after ``values()``.
        """
        token = checked_token(token)
        checked_flag("repeatable", repeatable)
        self._refuse_what_cannot_be_fenced({})
        self._refuse_values()
        self._for_write = True
        deleted = self._delete_fenced(token, repeatable=repeatable)
        self._result_cache = None
        if not deleted[0]:
            self._report_refusal(token)
        return deleted

    fenced_delete.alters_data = True  # type: ignore[attr-defined]
    fenced_delete.queryset_only = True  # type: ignore[attr-defined]

    async def afenced_delete(self, token: int, /, *, repeatable: bool = False) -> tuple[int, dict[str, int]]:
        """The same as ``fenced_delete``, in a thread."""
        return await sync_to_async(self.fenced_delete)(token, repeatable=repeatable)

    afenced_delete.alters_data = True  # type: ignore[attr-defined]
    afenced_delete.queryset_only = True  # type: ignore[attr-defined]

    def fenced_update_or_create(
        self,
        token: int,
        /,
        defaults: Values = None,
        create_defaults: Values = None,
        *,
        repeatable: bool = False,
        **lookup: Any,
    ) -> tuple[M, bool]:
        """
        Write the row that the lookup finds, if it admits ``token``; or insert one that carries it from the start.

        Signals are sent, and the arguments work, as in ``update_or_create()``. The row is locked, so the lookup still
        holds when it is written. Who loses the race for the INSERT writes the row of the winner, or is refused by it.

        Args:
            token: The fence token of the lease.
            defaults: Values to write, callables are called; also for a new row, unless ``create_defaults`` is given.
            create_defaults: Values of a new row, beside those that the lookup names exactly.
            repeatable: Admit a row that carries this very token.
            **lookup: What to find the row by, as for ``get()``.

        Returns:
            The instance, and whether it was created.

        Raises:
            StaleToken: The row carries a newer token, or this one; the error tells both.
            MultipleObjectsReturned: The model's own.
            IntegrityError: A new row breaks another constraint, or was created and deleted by others time and again.
            TypeError: ``token`` is not an int, ``repeatable`` no bool or the values no dict, or after ``values()``.
            ValueError: ``token`` is out of range, ``fence_token`` is among the fields, or the values would give a row
                that exists another primary key.
            FieldError: From ``django.core.exceptions``: the values name what the model does not have.
        """
        token = checked_token(token)
        checked_flag("repeatable", repeatable)
        update = upserts.checked_values(self, "defaults", defaults)
        create = update if create_defaults is None else upserts.checked_values(self, "create_defaults", create_defaults)
        self._prepare_upsert({**lookup, **update, **create})
        with stale_writes.told(self.model, self.db):
            return upserts.update_or_create(self, token, lookup, update, create, repeatable=repeatable)

    fenced_update_or_create.alters_data = True  # type: ignore[attr-defined]

    async def afenced_update_or_create(
        self,
        token: int,
        /,
        defaults: Values = None,
        create_defaults: Values = None,
        *,
        repeatable: bool = False,
        **lookup: Any,
    ) -> tuple[M, bool]:
        """The same as ``fenced_update_or_create``, in a thread."""
        write = sync_to_async(self.fenced_update_or_create)
        return await write(token, defaults, create_defaults, repeatable=repeatable, **lookup)

    afenced_update_or_create.alters_data = True  # type: ignore[attr-defined]

    def fenced_get_or_create(self, token: int, /, defaults: Values = None, **lookup: Any) -> tuple[M, bool]:
        """
        Return the row that the lookup finds, whatever token it carries; or insert one that carries ``token``.

        Raises:
            MultipleObjectsReturned, IntegrityError, TypeError, ValueError, FieldError: As
                ``fenced_update_or_create()``.
        """
        token = checked_token(token)
        create = upserts.checked_values(self, "defaults", defaults)
        self._prepare_upsert({**lookup, **create})
        return upserts.get_or_create(self, token, lookup, create)

    fenced_get_or_create.alters_data = True  # type: ignore[attr-defined]

    async def afenced_get_or_create(self, token: int, /, defaults: Values = None, **lookup: Any) -> tuple[M, bool]:
        """The same as ``fenced_get_or_create``, in a thread."""
        return await sync_to_async(self.fenced_get_or_create)(token, defaults, **lookup)

    afenced_get_or_create.alters_data = True  # type: ignore[attr-defined]

    def fenced_bulk_upsert(
        self,
        objs: Iterable[M],
        token: int,
        /,
        *,
        unique_fields: Sequence[str],
        update_fields: Sequence[str],
        batch_size: int | None = None,
        repeatable: bool = False,
    ) -> int | None:
        """
        Insert the objects, or write the rows they conflict with that admit ``token``: one statement per batch.

        As in ``bulk_create(update_conflicts=True)`` no signals are sent and filters of the queryset do not matter. The
        instances learn nothing: neither ``fence_token`` nor a primary key is set. A refused row is left as it is.

        Args:
            objs: Unsaved or loaded instances, one for each row.
            token: The fence token of the lease.
            unique_fields: Fields of the unique constraint that tells which row an object stands for. MySQL and MariaDB
                go by any unique index, and then write only rows that agree in these.
            update_fields: Fields to write in rows that exist; these get the token in any case.
            batch_size: Most objects in one statement.
            repeatable: Admit rows that carry this very token.

        Returns:
            The number of rows inserted or changed. None on MySQL and MariaDB: their count does not tell a new row from
            a refused one.

        Raises:
            NotSupportedError: From ``django.db``: the database has no such statement.
            TypeError: ``token`` is not an int, ``repeatable`` no bool, the fields are no names in a list, or an object
                is none of this model.
            ValueError: ``token`` is out of range, ``fence_token`` is among the fields, two objects stand for one row,
                or the model is a multi-table child.
        """
        token = checked_token(token)
        checked_flag("repeatable", repeatable)
        unique_fields = checked_names("unique_fields", unique_fields)
        update_fields = checked_names("update_fields", update_fields)
        self._prepare_upsert(dict.fromkeys([*unique_fields, *update_fields]))
        objs = upserts.checked_objects(self.model, objs)
        upsert = upserts.ConditionalUpsert(self.model, using=self.db)
        upsert.prepare(token, unique_fields, repeatable=repeatable)
        written = upsert.run(objs, update_fields, batch_size)
        if written is None or written < len(objs):
            self._report_refused_rows(token, written, upsert.rows_of(objs))
        return written

    fenced_bulk_upsert.alters_data = True  # type: ignore[attr-defined]

    async def afenced_bulk_upsert(
        self,
        objs: Iterable[M],
        token: int,
        /,
        *,
        unique_fields: Sequence[str],
        update_fields: Sequence[str],
        batch_size: int | None = None,
        repeatable: bool = False,
    ) -> int | None:
        """The same as ``fenced_bulk_upsert``, in a thread."""
        write = sync_to_async(self.fenced_bulk_upsert)
        return await write(
            objs,
            token,
            unique_fields=unique_fields,
            update_fields=update_fields,
            batch_size=batch_size,
            repeatable=repeatable,
        )

    afenced_bulk_upsert.alters_data = True  # type: ignore[attr-defined]

    def update(self, **fields: Any) -> int:
        """As Django's; ``fence_token`` cannot be among the fields, since nothing would keep it from falling."""
        if "fence_token" in fields and not self.writes_fence:
            raise ValueError("update() does not write fence_token: use fenced_update(token, ...)")
        return super().update(**fields)

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None) -> int:
        """As Django's; ``fence_token`` cannot be among the fields."""
        fields = list(fields)
        if "fence_token" in fields:
            raise ValueError("bulk_update() does not write fence_token: use fenced_update(token, ...)")
        return super().bulk_update(objs, fields, batch_size=batch_size)

    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        """As Django's; ``fence_token`` cannot be among the fields to update on a conflict."""
        if update_fields is not None:
            update_fields = list(update_fields)
        if update_conflicts and "fence_token" in (update_fields or ()):
            raise ValueError("bulk_create() does not overwrite fence_token: use fenced_update(token, ...)")
        return super().bulk_create(objs, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields)

    def _prepare_upsert(self, fields: dict[str, Any]) -> None:
        self._refuse_what_cannot_be_fenced(fields)
        self._refuse_values()
        self._for_write = True

    def _write_fenced(self, token: int, fields: dict[str, Any], *, repeatable: bool) -> int:
        if locked_writes.is_single_statement(self):
            admitted = locked_writes.admitting(self, token, repeatable=repeatable)
            admitted.writes_fence = True
            return int(admitted.update(fence_token=token, **fields))
        with transaction.atomic(using=self.db, savepoint=False):
            keys = locked_writes.lock(self, token, repeatable=repeatable)
            return locked_writes.write(self, keys, token, fields, repeatable=repeatable)

    def _delete_fenced(self, token: int, *, repeatable: bool) -> tuple[int, dict[str, int]]:
        collector = Collector(using=self.db, origin=self)
        if locked_writes.is_single_statement(self) and collector.can_fast_delete(self):
            admitted = locked_writes.admitting(self, token, repeatable=repeatable)
            deleted: tuple[int, dict[str, int]] = admitted.order_by().delete()
            return deleted
        with transaction.atomic(using=self.db, savepoint=False):
            return self._delete_by_key(locked_writes.lock(self, token, repeatable=repeatable))

    def _refuse_what_cannot_be_fenced(self, fields: dict[str, Any]) -> None:
        if "fence_token" in fields:
            raise ValueError("fence_token cannot be among the fields: it is set to the token of the write")
        if self.query.combinator:
            raise NotSupportedError("cannot write a queryset after union(), intersection() or difference()")
        if self.query.is_sliced:
            raise TypeError("cannot write a queryset once a slice has been taken")
        if self.query.distinct_fields:
            raise TypeError("cannot write a queryset after .distinct(*fields)")

    def _refuse_values(self) -> None:
        rows: Any = self
        if rows._fields is not None:
            raise TypeError("cannot delete, find or create rows after .values() or .values_list()")

    def _delete_by_key(self, keys: list[Any]) -> tuple[int, dict[str, int]]:
        total, by_model = 0, dict[str, int]()
        for batch in locked_writes.batches(keys):
            count, counts = models.QuerySet(self.model, using=self.db).filter(pk__in=batch).delete()
            total += count
            for label, number in counts.items():
                by_model[label] = by_model.get(label, 0) + number
        return total, by_model

    def _report_refusal(self, token: int) -> None:
        """Find out why a write changed nothing, if anybody listens, and tell."""
        if not stale_write_rejected.has_listeners(self.model):
            return
        current = locked_writes.newest_token(self)
        reason = "repeated" if current == token else "stale"
        if current is None or current < token:
            reason = "missing"
        stale_writes.tell(self.model, self.db, token, current, reason)

    def _report_refused_rows(self, token: int, written: int | None, rows: Iterator[models.QuerySet[Any]]) -> None:
        """Do the same after an upsert of many, of which some were refused, or may have been (None)."""
        if not stale_write_rejected.has_listeners(self.model):
            return
        current = max((newest for some in rows if (newest := locked_writes.newest_token(some)) is not None), default=0)
        if current > token:
            stale_writes.tell(self.model, self.db, token, current, "stale")
        elif written is not None:
            stale_writes.tell(self.model, self.db, token, token, "repeated")


if MYPY or not TYPE_CHECKING:
    _Manager = models.Manager.from_queryset(FencedQuerySet)

    class FencedManager(_Manager[M]):
        """A manager with the fenced writes of ``FencedQuerySet``."""

        def get_queryset(self) -> FencedQuerySet[M]:
            """Return all rows, as a queryset with fenced writes."""
            rows: Any = super().get_queryset()
            return rows  # type: ignore[no-any-return]
