"""
Database transactions around a lock: a lease that is left inside one is given back after it has ended.

Given back earlier, the next holder would read what was there before the work is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from weakref import finalize

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .logs import about

_log = logging.getLogger(__name__)


def open_transactions() -> list[str]:
    """
    Return the aliases of the databases with an open transaction in this thread.

    Those that Django's own ``TestCase`` opens do not count; no query is sent and no connection made.
    """
    return [wrapper.alias for wrapper in connections.all(initialized_only=True) if _is_in_transaction(wrapper)]


def refuse_manual_transaction(resource: str) -> None:
    """
    Refuse to lock where autocommit is turned off by hand: nobody can tell when that transaction ends.

    Raises:
        TransactionManagementError: Autocommit is off on a database, outside ``atomic()``.
    """
    for wrapper in connections.all(initialized_only=True):
        # Not get_autocommit(), which connects.
        if wrapper.connection is not None and not wrapper.in_atomic_block and not wrapper.autocommit:
            raise transaction.TransactionManagementError(
                f"cannot lock {resource!r} while autocommit is off on database {wrapper.alias!r}: nothing tells "
                "when the transaction ends; use atomic()"
            )


def after_transactions(aliases: Iterable[str], action: Callable[[], object], resource: str | None = None) -> None:
    """
    Run ``action`` once, when the transactions on all these databases have ended, committed or not.

    After a rollback it runs as soon as Django forgets what was to happen on commit. An error of the action is
    logged, with ``resource``, and not raised: the work is done.
    """
    pending = set(aliases)

    def ended(alias: str) -> None:
        pending.discard(alias)
        if not pending:
            try:
                action()
            except Exception:  # noqa: BLE001 - whatever it is, the transaction is over
                _log.exception("what was to follow a transaction failed", extra=about(resource))

    for alias in tuple(pending):
        _watch(alias, partial(ended, alias))


def _watch(alias: str, ended: Callable[[], None]) -> None:
    """Call ``ended`` once, when the outermost transaction on this database has ended."""
    transaction.on_commit(_Hook(alias, ended), using=alias)


class _Hook:
    """
    What Django is to call on commit.

    Django drops the hooks of what is rolled back without a word. Nothing else refers to this one, so its own end
    tells of that.
    """

    def __init__(self, alias: str, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._dropped = finalize(self, _dropped, alias, ended)
        self._dropped.atexit = False

    def __call__(self) -> None:
        self._dropped.detach()
        self._ended()


def _dropped(alias: str, ended: Callable[[], None]) -> None:
    if _is_in_transaction(connections[alias]):
        # Only a savepoint was rolled back.
        _watch(alias, ended)
    else:
        ended()


def _is_in_transaction(wrapper: BaseDatabaseWrapper) -> bool:
    if not wrapper.in_atomic_block:
        return False
    # What a test case of Django's has begun is never committed: nothing would ever be given back. The mark is
    # Django's own, for durable blocks, and not public.
    blocks = wrapper.atomic_blocks
    return not (blocks and getattr(blocks[0], "_from_testcase", False))
