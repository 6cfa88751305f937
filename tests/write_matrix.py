"""
Two writers that meet at a row.

The newer writer is the test's own thread. The stale one has a thread, so a connection, of its own, and goes on step by
step: its transaction begins, perhaps reads the row, writes, ends.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, connections, transaction

from fenced_locks import StaleToken
from fenced_locks.guards import is_guard_refusal
from tests.helpers import wait_until
from tests.write_paths import NEWER, NEWEST, UNTOUCHED, Found, Row, WritePath, execute

# How each database says that a transaction has met a newer row.
_MESSAGES = {
    "could not serialize access": "serialization",
    "database is locked": "locked",
    "Record has changed since last read": "changed",
}


class Timing(enum.Enum):
    """When the newer writer comes, seen from the stale one."""

    COMMITTED = "committed"
    UNCOMMITTED = "uncommitted"
    BETWEEN = "between"
    NEVER = "never"


class StaleWriter:
    """The holder that overslept; ``before`` and ``inside`` are the SQL around the BEGIN of its transaction."""

    def __init__(self, using: str, before: list[str], inside: list[str]) -> None:
        self._using, self._before, self._inside = using, before, inside
        self._thread = ThreadPoolExecutor(1)
        self._write_sent = threading.Event()
        self._session = self._do(self._connect)

    def begin(self) -> None:
        """Begin its transaction."""
        self._do(self._begin)

    def read(self, row: Row) -> None:
        """Read the row, which takes a snapshot where the isolation level has one."""
        assert self._do(row.found) == UNTOUCHED

    def write(self, path: WritePath, row: Row) -> Future[Any]:
        """Write the row and end the transaction; the result is that of the write, or its error."""
        return self._thread.submit(self._write, path, row)

    def waits(self) -> bool:
        """Say whether it waits for the newer writer, who asks."""
        vendor = connections[self._using].vendor
        if vendor == "sqlite":
            # It shows no locks. From here on it is the same, whether the write begins before the other's commit.
            return self._write_sent.is_set()
        if vendor == "mysql":
            # INNODB_TRX would keep its answer for 100 ms.
            sql = "SELECT variable_value + 0 FROM information_schema.global_status WHERE variable_name = %s"
            return bool(_value(self._using, sql, "INNODB_ROW_LOCK_CURRENT_WAITS"))
        return bool(_value(self._using, "SELECT cardinality(pg_blocking_pids(%s))", self._session))

    def close(self) -> None:
        """End its thread and its connection."""
        self._do(connections.close_all)
        self._thread.shutdown()

    def _do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._thread.submit(function, *arguments).result(30)

    def _connect(self) -> Any:
        execute(self._using, *self._before)
        is_postgres = connections[self._using].vendor == "postgresql"
        return _value(self._using, "SELECT pg_backend_pid()") if is_postgres else None

    def _begin(self) -> None:
        self._write_sent.clear()
        self._transaction = ExitStack()
        self._transaction.enter_context(connections[self._using].execute_wrapper(self._notice))
        self._transaction.enter_context(transaction.atomic(using=self._using))
        execute(self._using, *self._inside)

    def _write(self, path: WritePath, row: Row) -> Any:
        try:
            with self._transaction:
                return path.write(row)
        except (DatabaseError, ObjectDoesNotExist, StaleToken, ValueError) as error:
            return error

    def _notice(self, send: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        if sql.startswith(("DELETE", "INSERT", "UPDATE")):
            self._write_sent.set()
        return send(sql, *arguments)


def meet(path: WritePath, row: Row, stale: StaleWriter, timing: Timing, *, readers_delay_commits: bool = False) -> Any:
    """Let the two writers meet at the row; return what the stale one got."""
    if timing is Timing.BETWEEN:
        stale.begin()
        stale.read(row)
    # A newer writer that has to wait for the reader's end to commit has written already.
    overlaps = timing is Timing.UNCOMMITTED or (timing is Timing.BETWEEN and readers_delay_commits)
    with transaction.atomic(using=row.using):
        if timing is not Timing.NEVER:
            row.write_newer()
        if overlaps:
            writing = _start(path, row, stale, timing)
            wait_until(lambda: writing.done() or stale.waits())
            assert not writing.done() or isinstance(writing.result(), Exception), "it did not wait"
    if not overlaps:
        writing = _start(path, row, stale, timing)
    return writing.result(30)


def _start(path: WritePath, row: Row, stale: StaleWriter, timing: Timing) -> Future[Any]:
    if timing is not Timing.BETWEEN:
        stale.begin()
    return stale.write(path, row)


def outcome(result: Any, found: Found) -> str:
    """Put into a word or two what the stale writer got, and what became of the row; bold where that was lost."""
    if isinstance(result, Exception):
        return _error(result)
    if found is None:
        return "**deleted**"
    if found == NEWEST:
        return "0 rows" if result in (0, (0, {})) else "left alone"
    return "**token lowered**" if found[0] < NEWER else "**written over**"


def _error(error: Exception) -> str:
    if is_guard_refusal(error):
        return "guard"
    known = [word for part, word in _MESSAGES.items() if part in str(error)]
    return known[0] if known else f"`{type(error).__name__}`"


def _value(using: str, sql: str, *parameters: Any) -> Any:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, parameters)
        row = cursor.fetchone()
        return row and row[0]
