"""``FencedManager``, and how it is typed for checkers without a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models

from .querysets import FencedQuerySet, Values
from .typed import MYPY

if MYPY or not TYPE_CHECKING:
    from .querysets import FencedManager as FencedManager

    default_manager = FencedQuerySet.as_manager

if TYPE_CHECKING and not MYPY:
    from collections.abc import Iterable, Sequence

    from .typed import ManagerOf, Q

    M = TypeVar("M", bound=models.Model)

    class FencedManager(models.Manager[M]):
        """A manager with the fenced writes of ``FencedQuerySet``."""

        def get_queryset(self) -> FencedQuerySet[M]: ...
        def all(self) -> FencedQuerySet[M]: ...
        def none(self) -> FencedQuerySet[M]: ...
        def filter(self, *args: Any, **kwargs: Any) -> FencedQuerySet[M]: ...
        def exclude(self, *args: Any, **kwargs: Any) -> FencedQuerySet[M]: ...
        def complex_filter(self, filter_obj: Any) -> FencedQuerySet[M]: ...
        def select_for_update(
            self, nowait: bool = ..., skip_locked: bool = ..., of: Sequence[str] = ..., no_key: bool = ...
        ) -> FencedQuerySet[M]: ...
        def select_related(self, *fields: Any) -> FencedQuerySet[M]: ...
        def prefetch_related(self, *lookups: Any) -> FencedQuerySet[M]: ...
        def annotate(self, *args: Any, **kwargs: Any) -> FencedQuerySet[M]: ...
        def alias(self, *args: Any, **kwargs: Any) -> FencedQuerySet[M]: ...
        def order_by(self, *field_names: Any) -> FencedQuerySet[M]: ...
        def distinct(self, *field_names: str) -> FencedQuerySet[M]: ...
        def reverse(self) -> FencedQuerySet[M]: ...
        def defer(self, *fields: Any) -> FencedQuerySet[M]: ...
        def only(self, *fields: str) -> FencedQuerySet[M]: ...
        def using(self, alias: str | None) -> FencedQuerySet[M]: ...
        @classmethod
        def from_queryset(cls, queryset_class: type[Q], class_name: str | None = None) -> type[ManagerOf[Q]]: ...

        def fenced_update(self, token: int, /, *, repeatable: bool = False, **fields: Any) -> int:
            """Update all rows of this manager that admit the token; see ``FencedQuerySet.fenced_update``."""

        async def afenced_update(self, token: int, /, *, repeatable: bool = False, **fields: Any) -> int:
            """The same as ``fenced_update``, in a thread."""

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
            """Write the row that the lookup finds, or insert one; see ``FencedQuerySet.fenced_update_or_create``."""

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

        def fenced_get_or_create(self, token: int, /, defaults: Values = None, **lookup: Any) -> tuple[M, bool]:
            """Find a row, or insert one with the token; see ``FencedQuerySet.fenced_get_or_create``."""

        async def afenced_get_or_create(self, token: int, /, defaults: Values = None, **lookup: Any) -> tuple[M, bool]:
            """The same as ``fenced_get_or_create``, in a thread."""

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
            """Insert the objects, or write their rows; see ``FencedQuerySet.fenced_bulk_upsert``."""

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

    class DefaultManager(FencedManager[Any]):
        def __get__(self, instance: Any, cls: type[M]) -> FencedManager[M]: ...

    def default_manager() -> DefaultManager: ...
