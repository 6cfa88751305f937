"""
Fenced writes that cannot be one statement: across a join, across the tables of a multi-table child, with cascades.

The rows are locked first, in the order of their keys; then the caller's own conditions are read again, when nobody
can change the rows any more; then each table is written by key, with the fence on the row itself. All in one
transaction, which the caller opens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from django.db import connections, models
from django.db.models.expressions import Col
from django.db.models.lookups import LessThan, LessThanOrEqual
from django.db.models.options import Options
from django.db.models.sql import Query
from django.db.models.sql.where import AND, WhereNode

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
    """
    Return whether one statement writes this queryset and its WHERE holds every condition on the row as it is then.

    With a join Django moves the conditions into a subquery, which PostgreSQL does not read again after waiting for
    the row; nor does it read a subquery on the same table again that the caller wrote.
    """
    query = queryset.query
    if _concrete(queryset.model).parents or any(a.contains_over_clause for a in query.annotations.values()):
        return False
    return connections[queryset.db].vendor == "sqlite" or not (_has_join(query) or _reads_own_table(query))


def lock(queryset: QuerySet, token: int, *, repeatable: bool = False) -> list[Any]:
    """Lock the rows of a queryset that admit ``token``; return their keys, in order."""
    rows: QuerySet = models.QuerySet(queryset.model, using=queryset.db)
    suffix = "lte" if repeatable else "lt"
    fence = {f"fence_token__{suffix}": token}
    admitted = [present(rows.filter(pk__in=batch, **fence)) for batch in batches(_lock_matching(queryset))]
    return [key for batch in admitted for key in _keys(batch.order_by("pk"))]


def locked(queryset: QuerySet) -> QuerySet:
    """Lock the rows of a queryset; return those that still meet its conditions."""
    vendor = connections[queryset.db].vendor
    if vendor == "sqlite":
        _lock_database(queryset)
        return queryset
    # MariaDB sees a row that came after its snapshot by a locking read only.
    return present(queryset) if vendor == "mysql" else queryset.filter(pk__in=_lock_matching(queryset))


def newest_token(queryset: QuerySet) -> int | None:
    """Return the greatest token among the rows of a queryset, as they are; None for no rows."""
    tokens = present(queryset.order_by())
    if tokens.query.select_for_update:
        # An aggregate cannot be a locking read.
        return max(tokens.values_list("fence_token", flat=True), default=None)
    newest: int | None = tokens.aggregate(newest=models.Max("fence_token"))["newest"]
    return newest


def present(queryset: QuerySet) -> QuerySet:
    """Return a queryset that reads rows as they are, where a transaction of MariaDB would read its snapshot."""
    connection = connections[queryset.db]
    return queryset.select_for_update() if connection.vendor == "mysql" and connection.in_atomic_block else queryset


def _lock_matching(queryset: QuerySet) -> list[Any]:
    """Lock the rows of a queryset, and read its conditions again; return the keys, in order."""
    matching = queryset.order_by().values("pk")
    matching.query.select_for_update = matching.query.select_related = False
    rows: QuerySet = models.QuerySet(queryset.model, using=queryset.db)
    vendor = connections[queryset.db].vendor
    if vendor == "sqlite":
        _lock_database(queryset)
        return _keys(matching)
    if vendor == "mysql":
        # In one step MariaDB would lock the joined rows too, in an order of its own.
        taken = _keys_locked(queryset, rows, _keys(matching))
    else:
        # In a subquery, so that DISTINCT, GROUP BY and windows do not forbid FOR UPDATE.
        taken = _lock_rows(queryset, rows.filter(pk__in=matching))
    confirmed = set(_keys(present(matching)))
    return [key for key in taken if key in confirmed]


def write(queryset: Any, keys: list[Any], token: int, fields: dict[str, Any], *, repeatable: bool = False) -> int:
    """Write locked rows by key, the table that holds the token first; return how many."""
    owner = fence_owner(queryset.model)
    values: dict[type[models.Model], dict[str, Any]] = {owner: {}}
    for name, value in fields.items():
        values.setdefault(_table_of(queryset.model, name), {})[name] = value
    values[owner]["fence_token"] = token
    changed = 0
    for model, own_values in values.items():
        for batch in batches(_keys_in(model, queryset, keys)):
            rows = _rows_of(model, queryset).filter(pk__in=batch)
            if model is owner:
                rows = admitting(rows, token, repeatable=repeatable)
                rows.writes_fence = True
                changed += rows.update(**own_values)
            else:
                rows.update(**own_values)
    return changed


def batches(keys: list[Any]) -> Iterator[list[Any]]:
    """Yield the keys in portions that fit into one statement."""
    for start in range(0, len(keys), _BATCH):
        yield keys[start : start + _BATCH]


def _concrete(model: type[models.Model]) -> Options[Any]:
    return (model._meta.concrete_model or model)._meta


def _keys(queryset: QuerySet) -> list[Any]:
    """Return the primary keys, each once: a join may repeat a row."""
    return list(dict.fromkeys(queryset.values_list("pk", flat=True)))


def _keys_locked(queryset: QuerySet, rows: QuerySet, keys: list[Any]) -> list[Any]:
    return [key for batch in batches(sorted(keys)) for key in _lock_rows(queryset, rows.filter(pk__in=batch))]


def _lock_rows(queryset: QuerySet, rows: QuerySet) -> list[Any]:
    """Lock rows, of all the tables of a multi-table child, as the caller would wait for them; return their keys."""
    given = queryset.query
    # The weaker lock lets others refer to the rows, and is the one that an UPDATE takes.
    no_key = connections[queryset.db].features.has_select_for_no_key_update
    locking = rows.order_by("pk").select_for_update(
        nowait=given.select_for_update and given.select_for_update_nowait,
        skip_locked=given.select_for_update and given.select_for_update_skip_locked,
        no_key=no_key,
    )
    if _concrete(queryset.model).parents:
        return [row.pk for row in locking]
    return _keys(locking)


def _lock_database(queryset: QuerySet) -> None:
    """Begin SQLite's write transaction before anything is read, or the first write would meet a newer snapshot."""
    table = connections[queryset.db].ops.quote_name(_concrete(queryset.model).db_table)
    with connections[queryset.db].cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE 1 = 0")


def _table_of(model: type[models.Model], name: str) -> type[models.Model]:
    """Return the model in whose table a field lies."""
    field = model._meta.get_field(name)
    return field.model._meta.concrete_model or model


def _rows_of(model: type[models.Model], queryset: Any) -> Any:
    """Return all rows of a table; by the caller's own queryset where it is his model's, with its annotations."""
    if model is not _concrete(queryset.model).model:
        return models.QuerySet(model, using=queryset.db)
    rows = queryset.order_by()
    rows.query.clear_where()
    rows.query.reset_refcounts({rows.query.get_initial_alias(): 1})
    return rows


def _keys_in(model: type[models.Model], queryset: QuerySet, keys: list[Any]) -> list[Any]:
    """Return the keys that the rows have in the table of an ancestor."""
    path = queryset.model._meta.get_path_to_parent(model) if model is not _concrete(queryset.model).model else []
    links = [step.join_field for step in path]
    if all(link.primary_key for link in links):
        return keys
    chain = "__".join([*(link.name for link in links), "pk"])
    rows: QuerySet = models.QuerySet(queryset.model, using=queryset.db)
    return [key for batch in batches(keys) for key in rows.filter(pk__in=batch).values_list(chain, flat=True)]


def _has_join(query: Query) -> bool:
    # The question that Django's own UPDATE compiler asks before it moves all conditions into a subquery.
    return any(uses for alias, uses in query.alias_refcount.items() if alias != query.base_table)


def _reads_own_table(query: Query) -> bool:
    table = query.get_meta().db_table
    return any(
        source.table_name == table and inner.alias_refcount[alias]
        for inner in _inner_queries(query.where)
        for alias, source in inner.alias_map.items()
    )


def _inner_queries(where: WhereNode) -> Iterator[Query]:
    for condition in where.children:
        if isinstance(condition, WhereNode):
            yield from _inner_queries(condition)
        elif not _is_plain(condition):
            for part in cast("Any", condition).flatten():
                inner = part if isinstance(part, Query) else getattr(part, "query", None)
                if isinstance(inner, Query):
                    yield inner
                    yield from _inner_queries(inner.where)


def _is_plain(condition: Any) -> bool:
    """Return whether a condition compares a column with a value, as most do."""
    return isinstance(getattr(condition, "lhs", None), Col) and not hasattr(condition.rhs, "flatten")
