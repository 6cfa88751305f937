"""The SQL of the table of counters: one statement per operation, atomic with the first insert and all races."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from django.db import OperationalError, connections

from .fields import MAX_TOKEN
from .models import FenceCounter

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_INSERT = "INSERT INTO {table} ({resource}, {token}) VALUES "
# MySQL cannot return columns: there the number comes with the reply, as the id of the last insert.
_NEXT = {
    "postgresql": "(%s, 1) ON CONFLICT ({resource}) DO UPDATE SET {token} = {table}.{token} + 1 RETURNING {token}",
    # Without the condition the greatest number would turn into a floating point one.
    "sqlite": "(%s, 1) ON CONFLICT ({resource}) DO UPDATE SET {token} = {token} + 1 "
    f"WHERE {{token}} < {MAX_TOKEN} RETURNING {{token}}",
    "mariadb": "(%s, 1) ON DUPLICATE KEY UPDATE {token} = {token} + 1 RETURNING {token}",
    "mysql": "(%s, LAST_INSERT_ID(1)) ON DUPLICATE KEY UPDATE {token} = LAST_INSERT_ID({token} + 1)",
}
_RAISE = {
    "postgresql": " ON CONFLICT ({resource}) DO UPDATE SET {token} = GREATEST({table}.{token}, EXCLUDED.{token})",
    "sqlite": " ON CONFLICT ({resource}) DO UPDATE SET {token} = MAX({token}, EXCLUDED.{token})",
    "mariadb": " ON DUPLICATE KEY UPDATE {token} = GREATEST({token}, VALUES({token}))",
    "mysql": " ON DUPLICATE KEY UPDATE {token} = GREATEST({token}, VALUES({token}))",
}
# Somebody else came first: PostgreSQL under stricter isolation levels, and MySQL. One of those who compete has its
# token each time, so a repetition comes to an end.
_CONFLICTS = {"40001", "40P01", 1213}
_ATTEMPTS = 100
_NO_TABLE = {"42P01", 1146}


def dialect(connection: BaseDatabaseWrapper) -> str:
    """Return which SQL a database speaks: its vendor, with MariaDB told from MySQL."""
    is_mariadb = connection.vendor == "mysql" and cast("Any", connection).mysql_is_mariadb
    return "mariadb" if is_mariadb else connection.vendor


def is_supported(speech: str) -> bool:
    """Return whether there are statements in this dialect."""
    return speech in _NEXT


def next_token(connection: BaseDatabaseWrapper, speech: str, resource: str) -> int:
    """
    Add one to the counter of a resource and return it; 1 for a new one.

    Args:
        connection: A connection on which the statement is committed at once.
        speech: The dialect of its database.
        resource: Name of the lock.

    Raises:
        django.db.Error: The database refuses.
        OverflowError: The counter cannot be raised any more.
    """
    statement = _statement(speech, _INSERT + _NEXT[speech])
    for _ in range(_ATTEMPTS):
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, [resource])
                return _number(cursor, speech)
        except OperationalError as error:
            conflict = error
            if connection.in_atomic_block or not _CONFLICTS & _codes(error):
                raise
    raise conflict


def _number(cursor: Any, speech: str) -> int:
    if speech == "mysql":
        return int(cursor.lastrowid)
    row = cursor.fetchone()
    if row is None:
        raise OverflowError("the counter has come to its end, 2**63 - 1")
    return int(row[0])


def read_tokens(using: str, resources: Sequence[str]) -> dict[str, int]:
    """Return the last tokens of those of the resources that have one."""
    rows = FenceCounter._base_manager.using(using).filter(pk__in=resources)
    return dict(rows.values_list("pk", "token"))


def counters_after(using: str, resource: str, number: int, start: str) -> list[tuple[str, int]]:
    """Return the next resources and their last tokens, in the order of the primary key."""
    rows = FenceCounter._base_manager.using(using).filter(pk__gt=resource).order_by("pk").values_list("pk", "token")
    if not start:
        return list(rows[:number])
    if connections[using].vendor == "postgresql":
        # Its order may be that of a language; there is an index for this question.
        return list(rows.filter(pk__startswith=start)[:number])
    # In the order of bytes those that are wanted stand together. SQLite and MariaDB would look at all rows for LIKE.
    return list(takewhile(lambda row: row[0].startswith(start), rows.filter(pk__gte=start)[:number]))


def raise_tokens(connection: BaseDatabaseWrapper, tokens: Mapping[str, int]) -> None:
    """Raise the counters of these resources to at least these tokens; none is lowered."""
    speech = dialect(connection)
    rows = ", ".join(["(%s, %s)"] * len(tokens))
    # In one order, so that two of these statements cannot wait for each other.
    values = [value for item in sorted(tokens.items()) for value in item]
    with connection.cursor() as cursor:
        cursor.execute(_statement(speech, _INSERT) + rows + _statement(speech, _RAISE[speech]), values)


def is_missing_table(error: Exception) -> bool:
    """Return whether a statement failed because the table of counters is not there."""
    return bool(_NO_TABLE & _codes(error)) or "no such table" in str(error)


def _codes(error: BaseException) -> set[object]:
    cause = error.__cause__ or error
    first = cause.args[0] if cause.args else None
    return {code for code in (getattr(cause, "sqlstate", None), first) if isinstance(code, str | int)}


@cache
def _statement(speech: str, text: str) -> str:
    names = FenceCounter._meta.db_table, *(field.column for field in FenceCounter._meta.concrete_fields)
    quote = '"' if speech in ("postgresql", "sqlite") else "`"
    table, resource, token = (f"{quote}{name}{quote}" for name in names)
    return text.format(table=table, resource=resource, token=token)
