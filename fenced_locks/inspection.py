"""
Read counters and leases in a stream: what ``manage.py fence_status`` shows.

Memory is flat, whatever the number of counters. What is read is a row of snapshots, not one: a lease may come or go
between two pages, and a counter may be seen twice if the server resizes its table meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import redis

from . import counter_rows
from .counter_scan import Query, RawPage, scan, show
from .issuers import Issuer

PAGE_SIZE = 1000
_MAX_TOKEN = 2**53 - 1


@dataclass(frozen=True)
class ResourceStatus:
    r"""
    What the server knows of one resource.

    Attributes:
        resource: Name without the key prefix. Bytes that are no UTF-8 are shown as ``\xff``.
        token: The last fence token; None if the counter holds no number.
        held: Whether the resource is taken now.
        remaining: What is left of the lease, in seconds; None if it is free or has a lease without end.
        owner: Value of the lock key; None if it is free, or names no owner.
        issued_at: When the token was issued, where the issuer can tell.
        note: What is to be said of the keys, as that a waiter is about to take the lock; mostly empty.
    """

    resource: str
    token: int | None
    held: bool = False
    remaining: float | None = None
    owner: str | None = None
    issued_at: datetime | None = None
    note: str = ""


@dataclass(frozen=True)
class Page:
    """
    One batch, in columns: to build an object for each of a million rows takes as long as to read them.

    Attributes:
        counters: How many counters match, whether they were asked for or not.

    The others hold the fields of ``ResourceStatus`` for what was asked for.
    """

    counters: int
    resources: list[str]
    tokens: list[int | None]
    held: list[bool]
    remaining: list[float | None]
    owners: list[str | None]
    issued_at: list[datetime | None]
    notes: list[str]

    @property
    def statuses(self) -> list[ResourceStatus]:
        """The same in rows."""
        columns = self.tokens, self.held, self.remaining, self.owners, self.issued_at, self.notes
        return list(map(ResourceStatus, self.resources, *columns))


def read_pages(
    client: redis.Redis,
    pattern: str | None = None,
    *,
    prefix: str = "",
    issuer: Issuer | None = None,
    held: bool = False,
    page_size: int = PAGE_SIZE,
) -> Iterator[Page]:
    """
    Return an iterator over the counters of the resources whose names match a Redis glob pattern, page by page.

    It reads on a connection of its own beside the client's pool.

    Args:
        client: Says which server and how to connect; it may decode replies or not.
        pattern: Glob over resource names; None for all.
        prefix: The setting ``KEY_PREFIX``. Locks whose names do not start with it are left out.
        issuer: Says when the tokens were issued, and which there are if it keeps its counters outside Redis.
        held: Return only what is held; the rest is counted.
        page_size: How many keys the server looks at for one page.

    Raises:
        ValueError: The pattern is malformed.
        redis.exceptions.RedisError, IssuerError: From the iterator: the server, or the issuer, cannot be read.
    """
    query, issuer = Query(prefix, pattern, page_size), issuer or Issuer()
    raw_pages = counter_rows.scan(client, issuer, query) if counter_rows.are_listed(issuer) else scan(client, query)
    return (page_of(raw, issuer, held=held) for raw in raw_pages)


def page_of(raw: RawPage, issuer: Issuer, *, held: bool = False) -> Page:
    """Return what is shown of a page, without the counters that are gone; only what is held, if so asked."""
    gone = {at for at, kind in raw.kinds.items() if kind == "none"}
    counters = len(raw.stored) - len(gone)
    if held:
        raw = raw.only(sorted(raw.leases.keys() - gone))
    elif gone:
        raw = raw.only([at for at in range(len(raw.stored)) if at not in gone])
    tokens = list(map(_token, raw.stored))
    dates = [None if token is None else issuer.issued_at(token) for token in tokens]
    page = _free(counters, raw.resources, tokens, dates)
    for at, lease in raw.leases.items():
        page.held[at] = True
        page.remaining[at], page.notes[at] = lease.remaining, lease.note
        page.owners[at] = None if lease.owner is None else show(lease.owner)
    for at, token in enumerate(tokens):
        if token is None or token > _MAX_TOKEN:
            page.notes[at] = "; ".join(filter(None, (_fault(raw, at), page.notes[at])))
    return page


def _free(counters: int, resources: list[str], tokens: list[int | None], dates: list[datetime | None]) -> Page:
    rows = len(resources)
    return Page(counters, resources, tokens, [False] * rows, [None] * rows, [None] * rows, dates, [""] * rows)


def _fault(raw: RawPage, at: int) -> str:
    value = raw.stored[at]
    if value is None:
        return f"counter is a {raw.kinds[at]}" if at in raw.kinds else ""
    if _token(value) is None:
        return f"counter is no number: {show(value[:40])!r}"
    return "counter is beyond 2**53 - 1"


def _token(value: bytes | None) -> int | None:
    # Longer ones are no tokens, and int() refuses them from some length on.
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None
