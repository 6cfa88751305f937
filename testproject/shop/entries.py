"""Rows with the state of their locks, for the index page."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_redis import get_redis_connection

from fenced_locks.conf import conf
from fenced_locks.issuers import get_issuer


@dataclass(frozen=True)
class Entry:
    """
    A row, and what is known of its resource now.

    Attributes:
        remaining: Seconds that are left of the lease; None if nobody holds it.
        issued_at: When the token of the last write was issued; None if the row was never written under one.
    """

    row: Any
    remaining: float | None
    issued_at: datetime | None


def entries(rows: Iterable[Any], resource: str) -> list[Entry]:
    """Return the rows as entries; `resource` is a format string such as "order:{0.pk}"."""
    rows = list(rows)
    with get_redis_connection(conf.USING).pipeline(transaction=False) as pipe:
        for row in rows:
            pipe.pttl(conf.KEY_PREFIX + resource.format(row))
        ends = pipe.execute()
    return [_entry(row, end) for row, end in zip(rows, ends, strict=True)]


def _entry(row: Any, end_ms: int) -> Entry:
    token = row.fence_token
    issued_at = get_issuer(conf.ISSUER).issued_at(token) if token else None
    return Entry(row, end_ms / 1000 if end_ms > 0 else None, issued_at)
