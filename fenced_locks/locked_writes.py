"""
Fenced writes that cannot be one statement: across a join, across the tables of a multi-table child, with cascades.

The rows are locked first, in the order of their keys; then the caller's own conditions and the fence are read again
from the locked rows; then each table is written by key. All in one transaction, which the caller opens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import connections, models
from django.db.models.expressions import Col
from django.db.models.lookups import LessThan, LessThanOrEqual
from django.db.models.options import Options
from django.db.models.query import ModelIterable
from django.db.models.sql import Query
from django.db.models.sql.where import AND

QuerySet = models.QuerySet[Any]

# Keys in one statement: Oracle takes no more than a thousand.
_BATCH = 1000


def fence_owner(model: type[models.Model]) -> type[models.Model]:
    """Return the model whose table holds the token: the model itself, or an ancestor of a multi-table child."""
    owner: type[models.Model] = model._meta.get_field("fence_token").model
    return owner


def admitting(queryset: Any, token: int, *, repeatable: bool = False) -> Any:
    """
    Return the rows of a queryset that admit ``token``: those with a smaller one, or with the same if ``repeatable``.

    The same as ``filter(fence_token__lt=token)`` at a fifth of its cost. The queryset is one of the model whose table
    holds the token.
    """
    fenced = queryset.all()
    field: Any = queryset.model._meta.get_field("fence_token")
    column = field.get_col(fenced.query.get_initial_alias())
    lookup = LessThanOrEqual if repeatable else LessThan
    fenced.query.where.add(lookup(column, token), AND)
    return fenced


def is_single_statement(queryset: QuerySet) -> bool:
    """Return whether Django writes this queryset by one statement whose WHERE holds every condition."""
    options = _concrete(queryset.model)
    if options.parents:
        return False
    return connections[queryset.db].vendor == "sqlite" or not _has_join(queryset.query)


def lock(queryset: QuerySet, token: int, *, repeatable: bool = False) -> list[Any]:
    """Lock the rows of a queryset that admit ``token``; return their keys, each once."""
    suffix = "lte" if repeatable else "lt"
    admitted = queryset.filter(**{f"fence_token__{suffix}": token})
    if connections[queryset.db].vendor == "sqlite":
        _lock_database(queryset)
        return _keys(admitted)
    confirmed = []
    for batch in batches(_locked_keys(queryset)):
        matching = admitted.filter(pk__in=batch)
        confirmed += _keys(_locking(matching) if _may_lock(matching) else matching)
    return confirmed


def locked(queryset: QuerySet) -> QuerySet:
    """Return the rows of a queryset in a form that locks them as they are read; on SQLite lock the database."""
    if connections[queryset.db].vendor == "sqlite":
        _lock_database(queryset)
        return queryset
    return _locking(queryset) if _may_lock(queryset) else queryset.filter(pk__in=_locked_keys(queryset))


def write(queryset: QuerySet, keys: list[Any], token: int, fields: dict[str, Any], *, repeatable: bool = False) -> int:
    """Write locked rows by key, the table that holds the token first; return how many."""
    owner = fence_owner(queryset.model)
    values: dict[type[models.Model], dict[str, Any]] = {owner: {}}
    for name, value in fields.items():
        values.setdefault(_table_of(queryset.model, name), {})[name] = value
    values[owner]["fence_token"] = token
    changed = 0
    for model, own_values in values.items():
        for batch in batches(_keys_in(model, queryset, keys)):
            rows: Any = model._base_manager.using(queryset.db).filter(pk__in=batch)
            _lend_annotations(queryset.query, rows.query)
            if model is owner:
                changed += models.QuerySet.update(admitting(rows, token, repeatable=repeatable), **own_values)
            else:
                models.QuerySet.update(rows, **own_values)
    return changed


def batches(keys: list[Any]) -> Iterator[list[Any]]:
    """Yield the keys in portions that fit into one statement."""
    for start in range(0, len(keys), _BATCH):
        yield keys[start : start + _BATCH]


def _concrete(model: type[models.Model]) -> Options[Any]:
    return (model._meta.concrete_model or model)._meta


def _locked_keys(queryset: QuerySet) -> list[Any]:
    ordered = queryset.order_by("pk")
    if _may_lock(ordered):
        return _keys(_locking(ordered))
    base: Any = queryset.model._base_manager.using(queryset.db)
    locked = []
    for batch in batches(_keys(ordered)):
        locked += _keys(_locking(base.filter(pk__in=batch).order_by("pk")))
    return locked


def _may_lock(queryset: QuerySet) -> bool:
    # PostgreSQL refuses FOR UPDATE with these; MariaDB takes it, and needs it to see past its snapshot.
    query = queryset.query
    plain = not query.distinct and query.group_by is None and _has_model_rows(queryset)
    return plain or connections[queryset.db].vendor == "mysql"


def _locking(queryset: QuerySet) -> QuerySet:
    if not (connections[queryset.db].features.has_select_for_update_of and _has_model_rows(queryset)):
        return queryset.select_for_update()
    return queryset.select_for_update(of=("self", *_parent_links(_concrete(queryset.model))))


def _parent_links(options: Options[Any], prefix: str = "") -> Iterator[str]:
    for parent, link in options.parents.items():
        if link is not None and link.model._meta.concrete_model is options.model:
            yield prefix + link.name
            yield from _parent_links(parent._meta, f"{prefix}{link.name}__")


def _has_model_rows(queryset: QuerySet) -> bool:
    return issubclass(queryset._iterable_class, ModelIterable)


def _keys(queryset: QuerySet) -> list[Any]:
    """Return the primary keys, each once: a join may repeat a row."""
    if queryset.query.select_for_update_of:
        # FOR UPDATE OF needs a selected column of every table that it names.
        rows = queryset.select_related(None)
        rows = rows if _concrete(queryset.model).parents else rows.only("pk")
        return list(dict.fromkeys(row.pk for row in rows))
    return list(dict.fromkeys(queryset.values_list("pk", flat=True)))


def _lock_database(queryset: QuerySet) -> None:
    """Begin SQLite's write transaction before anything is read, or the first write would meet a newer snapshot."""
    table = connections[queryset.db].ops.quote_name(_concrete(queryset.model).db_table)
    with connections[queryset.db].cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE 1 = 0")


def _table_of(model: type[models.Model], name: str) -> type[models.Model]:
    """Return the model in whose table a field lies."""
    field = model._meta.get_field(name)
    return field.model._meta.concrete_model or model


def _keys_in(model: type[models.Model], queryset: QuerySet, keys: list[Any]) -> list[Any]:
    """Return the keys that the rows have in the table of an ancestor."""
    path = queryset.model._meta.get_path_to_parent(model) if model is not _concrete(queryset.model).model else []
    links = [step.join_field for step in path]
    if all(link.primary_key for link in links):
        return keys
    chain = "__".join([*(link.name for link in links), "pk"])
    base: Any = queryset.model._base_manager.using(queryset.db)
    return [key for batch in batches(keys) for key in base.filter(pk__in=batch).values_list(chain, flat=True)]


def _lend_annotations(lender: Query, borrower: Query) -> None:
    """Let F() reach the annotations of the caller's queryset that need no other table."""
    if lender.base_table != borrower.get_initial_alias():
        return
    for name, annotation in lender.annotations.items():
        columns = [part for part in annotation.flatten() if isinstance(part, Col)]
        own = all(column.alias == lender.base_table for column in columns)
        if own and not (annotation.contains_aggregate or annotation.contains_over_clause):
            borrower.annotations[name] = annotation


def _has_join(query: Query) -> bool:
    # The question that Django's own UPDATE compiler asks before it moves all conditions into a subquery.
    copy = query.chain()
    copy.get_initial_alias()
    return bool(copy.count_active_tables() > 1)
