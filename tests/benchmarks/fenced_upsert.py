"""
``fenced_bulk_upsert`` against ``bulk_create(update_conflicts=True)`` with the same fields.

    python -m tests.benchmarks.fenced_upsert [--batches 10] [--rows 10000]
"""

from __future__ import annotations

import argparse
import os
from itertools import count

import django
import servers


def main() -> None:
    """Print the ratio for SQLite, and for PostgreSQL and MariaDB where they can be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rows", type=int, default=10_000)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    measure("default", options)
    if servers.has_postgres():
        measure_on("postgres", servers.postgres_server(), options)
    if servers.has_mariadb():
        measure_on("mariadb", servers.mariadb_server(), options)


def measure_on(using: str, server: servers.PostgresServer | servers.MariadbServer, options: argparse.Namespace) -> None:
    """Print the ratio on a server, and stop it."""
    from django.conf import settings

    settings.DATABASES[using].update(server.settings())
    try:
        if using == "mariadb":
            create_database(using)
        measure(using, options)
    finally:
        server.stop()


def create_database(using: str) -> None:
    """Create the database itself, which MariaDB lacks."""
    from django.db import connections

    wrapper = connections[using].copy()
    name, wrapper.settings_dict["NAME"] = wrapper.settings_dict["NAME"], ""
    with wrapper.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {name}")
    wrapper.close()


def measure(using: str, options: argparse.Namespace) -> None:
    """Print the ratio on one database: rows that exist, all of which are written."""
    from django.db import connections, models

    from tests.app.models import Stock
    from tests.benchmarks.side_by_side import compare

    with connections[using].schema_editor() as editor:
        editor.create_model(Stock)
    tokens = count(1)
    plain = models.QuerySet(Stock, using=using)
    has_target = connections[using].features.supports_update_conflicts_with_target

    def objects(token: int) -> list[Stock]:
        return [Stock(shop="a", sku=str(n), amount=token, fence_token=token) for n in range(options.rows)]

    def by_django(size: int) -> None:
        for _ in range(size):
            plain.bulk_create(
                objects(next(tokens)),
                update_conflicts=True,
                update_fields=["amount", "fence_token"],
                unique_fields=["shop", "sku"] if has_target else None,
            )

    def fenced(size: int) -> None:
        for _ in range(size):
            token = next(tokens)
            Stock.objects.using(using).fenced_bulk_upsert(
                objects(token), token, unique_fields=["shop", "sku"], update_fields=["amount"]
            )

    print(f"{connections[using].vendor}, {options.rows} rows, autocommit")
    names = ("bulk_create(update_conflicts=True)", "fenced_bulk_upsert(...)")
    compare(names, by_django, fenced, batches=options.batches, size=1)
    connections[using].close()


if __name__ == "__main__":
    main()
