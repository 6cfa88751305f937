"""
An UPDATE of one row with a fence guard on its table against the same without.

    python -m tests.benchmarks.fence_guard [--batches 40] [--size 200] [--database mariadb]
"""

from __future__ import annotations

import argparse
import os
from itertools import count
from typing import Any

import django
import servers

from tests.benchmarks.side_by_side import compare

SERVERS = {"default": None, "postgres": servers.postgres_server, "mariadb": servers.mariadb_server}


def main() -> None:
    """Print the ratio for SQLite, and for PostgreSQL and MariaDB where they can be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--database", choices=SERVERS, action="append")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from django.conf import settings

    for using in options.database or [using for using in SERVERS if using in settings.DATABASES]:
        start = SERVERS[using]
        if start is None:
            measure(using, options)
            continue
        server = start()
        settings.DATABASES[using].update(server.settings())
        try:
            measure(using, options)
        finally:
            server.stop()


def measure(using: str, options: argparse.Namespace) -> None:
    """Print the ratios on one database, for both kinds of guard."""
    from django.db import connections

    connection = connections[using]
    if connection.vendor == "mysql":
        _make_database(using)
    for strict in (False, True):
        plain, guarded = _tables(using, strict)
        print(f"{connection.vendor}, update() of one row by its key, autocommit")
        names = ("no guard", "strict guard" if strict else "guard")
        sides: Any = [_writer(rows) for rows in (plain, guarded)]
        compare(names, *sides, batches=options.batches, size=options.size)
    connection.close()


def _tables(using: str, strict: bool) -> list[Any]:
    """Make two tables alike, one of them guarded; return their rows."""
    from django.db import migrations, models

    from fenced_locks.fields import FenceTokenField
    from fenced_locks.operations import AddFenceGuard
    from tests.lab import Lab

    fields = [
        ("id", models.BigAutoField(primary_key=True)),
        ("fence_token", FenceTokenField()),
        ("status", models.CharField(max_length=20, default="new")),
    ]
    names = [f"{kind}{strict:d}" for kind in ("Plain", "Guarded")]
    lab = Lab(using)
    lab.run(*(migrations.CreateModel(name, fields) for name in names))
    lab.run(AddFenceGuard(names[1], strict=strict))
    return [lab.rows(name) for name in names]


def _writer(rows: Any) -> Any:
    key = rows.create().pk
    tokens = count(1)

    def write(size: int) -> None:
        for _ in range(size):
            assert rows.filter(pk=key).update(fence_token=next(tokens), status="x") == 1

    return write


def _make_database(using: str) -> None:
    """Make the database that the settings name: a new MariaDB has none."""
    from django.conf import settings
    from django.db import connections

    name, settings.DATABASES[using]["NAME"] = settings.DATABASES[using]["NAME"], ""
    with connections[using].cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{name}`")
    connections[using].close()
    connections[using].settings_dict["NAME"] = settings.DATABASES[using]["NAME"] = name


if __name__ == "__main__":
    main()
