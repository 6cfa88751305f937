"""Tokens from the database: as durable as the rows that they protect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from django.db import Error, NotSupportedError, connections, router

from ..exceptions import IssuerError
from ..transactions import open_transactions
from .base import ExternalIssuer

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_NO_TABLE = "its table is not there; with 'fenced_locks' in INSTALLED_APPS, run manage.py migrate"


class DatabaseIssuer(ExternalIssuer):
    """
    Tokens are 1, 2, 3 and so on, from one row per resource in the table of ``FenceCounter``; what Redis forgets does
    not matter.

    A token is committed before anybody sees it, never inside the caller's transaction: in autocommit it is drawn on
    the caller's own connection, inside ``atomic()`` on a second one that is closed right after. SQLite lets nobody
    else write meanwhile, so there it must be drawn before the transaction begins. In the transactions of Django's
    ``TestCase`` the caller's own connection serves, and what such a test rolls back is issued again.

    The table is on the database that the router names for writes of ``FenceCounter``: PostgreSQL, MariaDB, MySQL or
    SQLite.

    The law breaks if the database forgets what it has committed: a backup is restored, a replica that lagged is
    promoted, or it runs with ``synchronous_commit=off`` or the like and crashes. Rows that went the same way are
    safe; raise the counters above the others with ``fence_status --repair``.
    """

    name = "database"

    def issue(self, resource: str) -> int:
        # Not before the app registry is ready.
        from .. import counters

        _check_length(resource)
        connection = _database()
        speech = counters.dialect(connection)
        with _errors(f"no fence token for {resource!r}", connection):
            if not counters.is_supported(speech):
                raise NotSupportedError(f"{speech} is not supported; use PostgreSQL, MariaDB, MySQL or SQLite")
            with _outside_transactions(connection) as own:
                return counters.next_token(own, speech, resource)

    def last_tokens(self, resources: Sequence[str]) -> dict[str, int]:
        from .. import counters

        connection = _database()
        with _errors("the last fence tokens cannot be read", connection):
            return counters.read_tokens(connection.alias, resources)

    def counters_after(self, resource: str, number: int, start: str = "") -> list[tuple[str, int]]:
        from .. import counters

        connection = _database()
        with _errors("counters cannot be listed", connection):
            return counters.counters_after(connection.alias, resource, number, start)

    def raise_tokens(self, tokens: Mapping[str, int]) -> None:
        from .. import counters

        for resource in tokens:
            _check_length(resource)
        connection = _database()
        with _errors("counters cannot be raised", connection), _outside_transactions(connection) as own:
            counters.raise_tokens(own, tokens)


def _database() -> BaseDatabaseWrapper:
    from ..models import FenceCounter

    return connections[router.db_for_write(FenceCounter)]


@contextmanager
def _errors(what: str, connection: BaseDatabaseWrapper) -> Iterator[None]:
    from .. import counters

    try:
        yield
    except (Error, OverflowError) as error:
        reason = _NO_TABLE if counters.is_missing_table(error) else str(error)
        raise IssuerError(f"{what} from database {connection.alias!r}: {reason}") from error


@contextmanager
def _outside_transactions(connection: BaseDatabaseWrapper) -> Iterator[BaseDatabaseWrapper]:
    """Yield a connection to the same database on which a statement is committed at once."""
    if not _is_in_transaction(connection):
        yield connection
        return
    if connection.vendor == "sqlite":
        raise NotSupportedError(
            "SQLite has one writer at a time, and a transaction is open; take the lock first and begin the "
            "transaction inside it"
        )
    with closing(connection.copy()) as second:
        second.settings_dict["AUTOCOMMIT"] = True
        yield second


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        # Not so in a test case of Django's: what it wrote itself is seen on its own connection only.
        return connection.alias in open_transactions()
    return not connection.get_autocommit()


def _check_length(resource: str) -> None:
    from ..models import FenceCounter

    limit = FenceCounter.MAX_LENGTH
    if len(resource) > limit:
        raise IssuerError(
            f"no fence token for {resource!r}: the issuer 'database' keeps names of up to {limit} characters, "
            f"this one has {len(resource)}"
        )
