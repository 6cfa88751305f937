"""
Rows that may or may not exist: one object at a time, or many in one conditional statement.

What leans on Django's private parts: ``bulk_create()`` hands each batch to ``_insert``, and Django's own compiler for
the INSERT makes one statement of it, to which ``ConditionalUpsert`` adds the condition; a related manager notes in
``_known_related_objects`` whose rows it has; and ``_extract_model_params`` refuses names that the model does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import reduce
from operator import or_
from typing import Any

from django.db import IntegrityError, connections, models, transaction
from django.db.models.constants import LOOKUP_SEP, OnConflict
from django.db.models.sql import InsertQuery
from django.db.models.utils import resolve_callables

from . import locked_writes
from .exceptions import StaleToken

# Rows in one look for who was refused: more conditions are too deep for SQLite.
_BATCH = 100


def checked_values(rows: Any, argument: str, values: object) -> dict[str, Any]:
    """
    Return the values that a row shall have; none for None.

    Raises:
        TypeError: Not a dict or the like.
        FieldError: A name that the model does not have. Django says so where it creates a row, and not where it
            finds one: there a misspelt value would be lost.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise TypeError(f"{argument} must be a dict of values by field, not {values!r}")
    rows._extract_model_params(values)
    return dict(values)


def checked_objects(model: type[models.Model], objs: object) -> list[Any]:
    """
    Return instances of a model, or of its proxies, as a list.

    Raises:
        TypeError: Something else is among them.
    """
    listed = list(objs) if isinstance(objs, Iterable) else []
    kind = model._meta.concrete_model or model
    wrong = [one for one in listed if not isinstance(one, kind) or one._meta.concrete_model is not kind]
    if wrong or not isinstance(objs, Iterable):
        got = wrong[0] if wrong else objs
        raise TypeError(f"objs must be instances of {model._meta.label}, in a list or the like; got {got!r}")
    return listed


def update_or_create(
    rows: Any, token: int, lookup: dict[str, Any], update: dict[str, Any], create: dict[str, Any], *, repeatable: bool
) -> tuple[Any, bool]:
    """Write the one row that the lookup finds, locked, if it admits the token; else insert one with the token."""

    def find() -> Any:
        with transaction.atomic(using=rows.db):
            found = _one(locked_writes.locked(rows.filter(**lookup)))
            if found is not None:
                _refuse_stale(found, token, repeatable=repeatable)
                _save(found, token, update, rows.db, repeatable=repeatable)
            return found

    return _find_or_create([find, find, find], lambda: _create(rows, token, lookup, create))


def get_or_create(rows: Any, token: int, lookup: dict[str, Any], create: dict[str, Any]) -> tuple[Any, bool]:
    """Return the one row that the lookup finds; else insert one with the token."""

    def find() -> Any:
        return _one(rows.filter(**lookup))

    def find_newest() -> Any:
        # With a lock: MariaDB shows a row that was committed since the transaction began to such a read only.
        with transaction.atomic(using=rows.db):
            return _one(locked_writes.locked(rows.filter(**lookup)))

    return _find_or_create([find, find_newest, find_newest], lambda: _create(rows, token, lookup, create))


class ConditionalUpsert(models.QuerySet[Any]):
    """``bulk_create(update_conflicts=True)`` with the token, and with a condition on the rows that exist."""

    def prepare(self, token: int, unique_fields: Sequence[str], *, repeatable: bool) -> None:
        """Set the token, and the fields that tell which row an object stands for."""
        if not unique_fields:
            raise ValueError("unique_fields must name the fields that tell which row an object stands for")
        self._unique = [field for name in unique_fields for field in _named(self.model, name)]
        # MySQL and MariaDB go by any unique index, and count a refused row like a new one.
        self._by_any_key = connections[self.db].vendor == "mysql"
        self._operator = "<=" if repeatable else "<"
        # Not set on the instances: whether its row admitted the token is not known for each of them.
        self._fence = copy(self.model._meta.get_field("fence_token"))
        self._fence.__dict__["pre_save"] = lambda instance, add: token
        self._written = 0

    def rows_of(self, objs: Sequence[Any]) -> Iterator[models.QuerySet[Any]]:
        """Yield the rows that the objects stand for, in portions that fit into one statement."""
        names = [field.attname for field in self._unique]
        keys = [key for obj in objs if None not in (key := [getattr(obj, name) for name in names])]
        rows: models.QuerySet[Any] = models.QuerySet(self.model, using=self.db)
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            yield rows.filter(reduce(or_, (models.Q(**dict(zip(names, key, strict=True))) for key in some)))

    def run(self, objs: Sequence[Any], update_fields: Iterable[str], batch_size: int | None) -> int | None:
        """Insert or write; return how many, or None where the database does not tell."""
        _refuse_duplicates(objs, [field.attname for field in self._unique])
        self.bulk_create(
            objs,
            batch_size,
            update_conflicts=True,
            update_fields=[*update_fields, "fence_token"],
            unique_fields=None if self._by_any_key else [field.name for field in self._unique],
        )
        return None if self._by_any_key else self._written

    def _insert(
        self,
        objs: list[Any],
        fields: list[Any],
        returning_fields: Any = None,
        raw: bool = False,
        using: Any = None,
        on_conflict: Any = None,
        update_fields: Any = None,
        unique_fields: Any = None,
    ) -> list[Any]:
        connection = connections[self.db]
        query = InsertQuery(self.model)
        query.insert_values([self._fence if field == self._fence else field for field in fields], objs, raw=raw)
        suffix = (self._on_duplicate_key if self._by_any_key else self._on_conflict)(
            connection, [field.column for field in update_fields]
        )
        with connection.cursor() as cursor:
            for statement, params in query.get_compiler(using=self.db).as_sql():
                cursor.execute(f"{statement} {suffix}", params)
                self._written += cursor.rowcount
        return []

    def _on_conflict(self, connection: Any, columns: list[str]) -> str:
        unique = [field.column for field in self._unique]
        suffix = connection.ops.on_conflict_suffix_sql([], OnConflict.UPDATE, columns, unique)
        table, fence = map(connection.ops.quote_name, (self.model._meta.db_table, self._fence.column))
        return f"{suffix} WHERE {table}.{fence} {self._operator} EXCLUDED.{fence}"

    def _on_duplicate_key(self, connection: Any, columns: list[str]) -> str:
        quote = connection.ops.quote_name
        table = quote(self.model._meta.db_table)
        alias, new = ("", "VALUE({})") if connection.mysql_is_mariadb else ("AS new ", "new.{}")
        # Any unique index brings it here: the row must be the one that the caller means.
        conditions = [
            f"{table}.{name} <=> {new.format(name)}" for name in (quote(field.column) for field in self._unique)
        ]
        fence = quote(self._fence.column)
        conditions.append(f"{table}.{fence} {self._operator} {new.format(fence)}")
        admitted = " AND ".join(conditions)
        # From left to right, each with what those before it have set: the fence is the last.
        written = [f"{name} = IF({admitted}, {new.format(name)}, {table}.{name})" for name in map(quote, columns)]
        return f"{alias}ON DUPLICATE KEY UPDATE {', '.join(written)}"


def _named(model: type[models.Model], name: str) -> Sequence[Any]:
    return model._meta.pk_fields if name == "pk" else [model._meta.get_field(name)]


def _refuse_duplicates(objs: Sequence[Any], names: Sequence[str]) -> None:
    """PostgreSQL refuses a row that one statement writes twice; the others would keep the first."""
    keys = [tuple([getattr(obj, name) for name in names]) for obj in objs]
    known = [key for key in keys if None not in key]
    if len(set(known)) < len(known):
        raise ValueError(f"two objects have the same {', '.join(names)}: a row is written once under a token")


def _find_or_create(finds: Iterable[Callable[[], Any]], create: Callable[[], Any]) -> tuple[Any, bool]:
    """Look and insert in turn; the last conflict is raised if others create and delete the row all the time."""
    conflict = IntegrityError()
    for find in finds:
        found = find()
        if found is not None:
            return found, False
        try:
            return create(), True
        except IntegrityError as error:
            conflict = error
    raise conflict


def _one(rows: Any) -> Any:
    try:
        return rows.get()
    except rows.model.DoesNotExist:
        return None


def _create(rows: Any, token: int, lookup: dict[str, Any], values: dict[str, Any]) -> Any:
    exact = {name: value for name, value in lookup.items() if LOOKUP_SEP not in name}
    # "customer.orders" sets the customer of what it creates; that manager has methods for Django's own only.
    related = {field.name: one for field, known in rows._known_related_objects.items() for one in known.values()}
    # A savepoint: the conflict of a lost race must not end the caller's transaction.
    with transaction.atomic(using=rows.db):
        instance = rows.model(**dict(resolve_callables({**related, **exact, **values})))
        instance.fenced_save(token, using=rows.db)
    return instance


def _refuse_stale(locked: Any, token: int, *, repeatable: bool) -> None:
    """Spare the writing, and MariaDB's snapshot, which may be too old to say why it was refused."""
    current: int = locked.fence_token
    if current > token or (current == token and not repeatable):
        raise StaleToken(token=token, current=current)


def _save(instance: Any, token: int, values: dict[str, Any], using: str, *, repeatable: bool) -> None:
    before = _key_of(instance)
    for name, value in resolve_callables(values):
        setattr(instance, name, value)
    if (after := _key_of(instance)) != before:
        raise ValueError(f"defaults must not give a row that exists another primary key: {before} would become {after}")
    instance.fenced_save(token, update_fields=_fields_to_save(instance, values), using=using, repeatable=repeatable)


def _key_of(instance: Any) -> dict[str, Any]:
    """Return the primary key, of a multi-table child together with those of its parents."""
    own = [field for field in instance._meta.concrete_fields if field.primary_key]
    return {
        field.name: field.to_python(getattr(instance, field.attname)) for field in [*own, *instance._meta.pk_fields]
    }


def _fields_to_save(instance: Any, values: dict[str, Any]) -> set[str] | None:
    """Return what ``update_or_create()`` would save: the values, and what sets itself; None is everything."""
    own = [field for field in instance._meta.concrete_fields if not field.primary_key]
    if not {name for field in own for name in (field.name, field.attname)}.issuperset(values):
        return None
    by_themselves = (field.name for field in own if type(field).pre_save is not models.Field.pre_save)
    return {*values, *by_themselves, "fence_token"}
