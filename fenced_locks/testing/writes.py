"""Which rows of a fenced model were written without a token, by the SQL that was sent."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FrameType, TracebackType
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, models
from django.dispatch import Signal

# As each database quotes names, and as they are written without quotes.
_QUOTED = r"\"(?:[^\"]|\"\")+\"|`[^`]+`|\[[^\]]+\]"
_NAME = rf"(?:{_QUOTED}|\w+)"
_NOISE = re.compile(rf"({_QUOTED})|'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_OPTION = r"(?:or\s+\w+|ignore|low_priority|high_priority|delayed|quick|only)\s+"
_WRITE = re.compile(
    rf"\b(?:insert\s+(?:{_OPTION})*into|replace\s+(?:{_OPTION})*into|update|merge\s+into"
    rf"|delete\s+(?:{_OPTION})*(?:{_NAME}\s+)?from|truncate(?:\s+table)?)\s+(?:{_OPTION})*"
    rf"(?P<table>{_NAME}(?:\s*\.\s*{_NAME})*)",
    re.IGNORECASE,
)


class assert_fenced:
    """
    Fail if the block wrote rows of a fenced model without a fence token.

    Seen is the SQL that Django sends on the connections of this thread, raw SQL included: INSERT, UPDATE, DELETE,
    REPLACE, MERGE and TRUNCATE on the model's tables that changed a row. Fenced is what ``fenced_update``,
    ``fenced_save``, ``fenced_delete`` and the upserts send, and raw SQL that sets the column of the token and compares
    it by ``<`` or ``<=``. Plain ``save()``, ``create()``, ``update()``, ``delete()`` and the bulk methods are not
    fenced, also where a lock is held: whoever inserts a row under a lock gives it the token, by ``fenced_save``.

    Not seen is what does not pass through Django's cursors of this thread: other threads and processes, triggers,
    cascades of the database, ``COPY``; nor whether the token is that of the right resource. In async code the ORM works
    in another thread, so use ``async with`` there. An exception of the block is raised as it is.

    Args:
        model: A ``FencedModel``; of a multi-table child the tables down from the one with the token are watched.

    Raises:
        TypeError: It is no model, is abstract, or has no field ``fence_token``.
        AssertionError: At the end of the block; it shows the statements.
    """

    def __init__(self, model: type[models.Model]) -> None:
        # Not before the app registry is ready.
        from ..fields import FenceTokenField

        options = getattr(model, "_meta", None) if isinstance(model, type) else None
        fields = {field.name: field for field in options.concrete_fields} if options and not options.abstract else {}
        if not isinstance(fields.get("fence_token"), FenceTokenField):
            raise TypeError(f"model must be a FencedModel with a table, and {model!r} has no fence_token or no table")
        self._model, self._tables = model, _tables(model)
        column = re.escape(str(fields["fence_token"].column))
        self._condition = re.compile(
            rf"\b(?:set|update)\b(?:(?!\bwhere\b).)*\b{column}\b[\"`\]]?\s*=(?!=).*\b{column}\b[\"`\]]?\s*<(?!>)",
            re.DOTALL | re.IGNORECASE,
        )
        self._writes: list[str] = []
        self._watching = ExitStack()

    def __enter__(self) -> None:
        self._writes.clear()
        for connection in connections.all():
            self._watching.enter_context(connection.execute_wrapper(self._watch))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watching.close()
        if error is None and self._writes:
            name, shown = self._model._meta.label, "\n".join(f"  {sql}" for sql in self._writes)
            raise AssertionError(f"rows of {name} were written without a fence token:\n{shown}")

    async def __aenter__(self) -> None:
        await sync_to_async(self.__enter__)()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await sync_to_async(self.__exit__)(kind, error, traceback)

    def _watch(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        text = str(sql)
        statement = _NOISE.sub(r" \1 ", text)
        tables = {_bare(match["table"]) for match in _WRITE.finditer(statement)}
        if tables & self._tables and _may_have_changed(text, context["cursor"]) and not self._is_fenced(statement):
            self._writes.append(text if len(text) < 500 else f"{text[:500]}…")
        return result

    def _is_fenced(self, sql: str) -> bool:
        return _is_inside_fenced_write() or bool(self._condition.search(sql))


def _may_have_changed(sql: str, cursor: Any) -> bool:
    """Return whether a statement changed a row, as far as is known: SQLite counts after RETURNING has been read."""
    return cursor.rowcount != 0 or "returning" in sql.lower()


def _tables(model: type[models.Model]) -> set[str]:
    """Return the tables that make up a row, down from the one with the token."""
    from ..locked_writes import fence_owner

    concrete = model._meta.concrete_model or model
    owner = fence_owner(model)
    chain = {concrete, owner, *(parent for parent in concrete._meta.get_parent_list() if issubclass(parent, owner))}
    return {_bare(f'"{one._meta.db_table}"') for one in chain}


def _bare(table: str) -> str:
    """Return the name of a table without quotes and schema, as databases compare it that mind no case."""
    last: str = re.findall(_NAME, table)[-1]
    return last.strip('"`[]').casefold()


def _is_inside_fenced_write() -> bool:
    """Return whether a fenced write is what sends the present statement, and not a receiver of its signals."""
    inside, ends = _fenced_writes(), {Signal.send.__code__, Signal.send_robust.__code__}
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code not in ends:
        if frame.f_code in inside:
            return True
        frame = frame.f_back
    return False


def _fenced_writes() -> set[CodeType]:
    from ..models import FencedModel, FencedQuerySet

    methods: list[Any] = [
        FencedModel.fenced_save,
        FencedModel.fenced_delete,
        FencedQuerySet.fenced_update,
        FencedQuerySet.fenced_delete,
        FencedQuerySet.fenced_update_or_create,
        FencedQuerySet.fenced_get_or_create,
        FencedQuerySet.fenced_bulk_upsert,
    ]
    return {method.__code__ for method in methods}
