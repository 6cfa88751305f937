"""
A token of the issuer ``database`` against the statement that draws it, sent by hand in autocommit.

    python -m tests.benchmarks.database_token [--batches 40] [--size 200]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import django
import servers


def main() -> None:
    """Print the ratio for SQLite in a file, and for PostgreSQL and MariaDB where they can be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--size", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SQLITE_PATH"] = str(Path(directory, "counters.sqlite3"))
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        django.setup()
        measure("default", options)
    for alias, offered, start in (
        ("postgres", servers.has_postgres, servers.postgres_server),
        ("mariadb", servers.has_mariadb, servers.mariadb_server),
    ):
        if offered():
            on_server(alias, start, options)


def on_server(alias: str, start: Callable[[], servers.SqlServer], options: argparse.Namespace) -> None:
    """Print the ratio on a server of its own."""
    from django.conf import settings
    from django.db import connections

    server = start()
    settings.DATABASES[alias].update(server.settings())
    name = connections[alias].creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        measure(alias, options)
    finally:
        connections[alias].creation.destroy_test_db(name, verbosity=0)
        server.stop()


def measure(using: str, options: argparse.Namespace) -> None:
    """Print the ratio on one database."""
    from django.db import connections
    from django.test import override_settings

    from fenced_locks.counters import _INSERT, _NEXT, _statement, dialect
    from fenced_locks.issuers import DatabaseIssuer
    from fenced_locks.models import FenceCounter
    from tests.benchmarks.side_by_side import compare
    from tests.routers import CountersOn

    if FenceCounter._meta.db_table not in connections[using].introspection.table_names():
        with connections[using].schema_editor() as editor:
            editor.create_model(FenceCounter)
    speech = dialect(connections[using])
    statement = _statement(speech, _INSERT + _NEXT[speech])
    issuer = DatabaseIssuer()

    def by_hand(size: int) -> None:
        for _ in range(size):
            with connections[using].cursor() as cursor:
                cursor.execute(statement, ["by hand"])
                assert cursor.fetchone()[0] > 0

    def drawn(size: int) -> None:
        for _ in range(size):
            assert issuer.issue("drawn") > 0

    print(f"{speech}, one token, autocommit")
    with override_settings(DATABASE_ROUTERS=[CountersOn(using)]):
        compare(("the upsert by hand", "issuer.issue(...)"), by_hand, drawn, batches=options.batches, size=options.size)
    connections[using].close()


if __name__ == "__main__":
    main()
