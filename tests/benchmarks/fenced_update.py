"""
``fenced_update`` of one row against the same statement written by hand, and against an unfenced one.

    python -m tests.benchmarks.fenced_update [--batches 40] [--size 200]
"""

from __future__ import annotations

import argparse
import os
from itertools import count

import django
import servers


def main() -> None:
    """Print the ratio for SQLite, and for PostgreSQL where it can be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--size", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    measure("default", options)
    if servers.has_postgres():
        from django.conf import settings

        server = servers.postgres_server()
        settings.DATABASES["postgres"].update(server.settings())
        try:
            measure("postgres", options)
        finally:
            server.stop()


def measure(using: str, options: argparse.Namespace) -> None:
    """Print the ratio on one database."""
    from django.db import connections

    from tests.app.models import Customer, Order
    from tests.benchmarks.side_by_side import compare

    with connections[using].schema_editor() as editor:
        editor.create_model(Customer)
        editor.create_model(Order)
    key = Order.objects.using(using).create().pk
    tokens = count(1)

    def by_hand(size: int) -> None:
        for _ in range(size):
            token = next(tokens)
            rows = Order._base_manager.using(using).filter(pk=key, fence_token__lt=token)
            assert rows.update(fence_token=token, status="x") == 1

    def fenced(size: int) -> None:
        for _ in range(size):
            rows = Order.objects.using(using).filter(pk=key)
            assert rows.fenced_update(next(tokens), status="x") == 1

    print(f"{connections[using].vendor}, one row by its key, autocommit")
    names = ("filter(...).update(...) by hand", "filter(pk=...).fenced_update(...)")
    compare(names, by_hand, fenced, batches=options.batches, size=options.size)

    def unfenced(size: int) -> None:
        for _ in range(size):
            assert Order._base_manager.using(using).filter(pk=key).update(status="x") == 1

    names = ("filter(pk=...).update(...), unfenced", "filter(pk=...).fenced_update(...)")
    compare(names, unfenced, fenced, batches=options.batches, size=options.size)
    connections[using].close()


if __name__ == "__main__":
    main()
