"""Database routers for tests."""

from __future__ import annotations

from typing import Any


class CountersOn:
    """Keep the counters of the issuer `database` on one database, and leave the rest to Django."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Name the database to read from."""
        return self.db_for_write(model, **hints)

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        """Name the database to write to."""
        return self.alias if model._meta.label == "fenced_locks.FenceCounter" else None
