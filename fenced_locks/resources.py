"""
Single resources, with everything that is known of them: for those who look at one, or free it.

Unlike the stream of ``inspection`` this tells how many wait, and keeps names and owners as the bytes that they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import redis

from . import counter_rows, counter_scan, keys
from .counter_scan import Lease, Query, RawPage
from .inspection import PAGE_SIZE, ResourceStatus, page_of
from .issuers import AnyIssuer, ExternalIssuer
from .locks.core import is_owner_id
from .reading_line import Line

# What one page of a listing may cost: calls of SCAN and keys that the server looks at for each, and seconds.
_CALLS = 400
_SECONDS = 3.0
_NARROW, _WIDE = 100, 800
# The score of a waiter is its arrival in microseconds; the mark of a run among them is in milliseconds.
_FIRST_WAITER = b"100000000000000"
_NOT_SHOWN = "the lock key holds something that is no owner id; it is not shown"


class Resource(NamedTuple):
    """
    One resource.

    Attributes:
        name: Name of its lock, with the key prefix.
        owner: Whom its lease can be taken from; None if nobody has one, or the lock key names no owner.
        waiters: How many are registered to have it next: one for each process, at most.
        status: What is shown of it.
    """

    name: bytes
    owner: bytes | None
    waiters: int
    status: ResourceStatus


class Listing(NamedTuple):
    """
    A part of the resources of a server.

    Attributes:
        resources: In the order of their names.
        cursor: Where the next part begins; empty at the end.
    """

    resources: list[Resource]
    cursor: str


class Reader:
    """
    Reads resources of one server.

    Args:
        client: Says which server and how to connect; it may decode replies or not.
        issuer: Who issues the tokens.
        prefix: The setting ``KEY_PREFIX``.
    """

    def __init__(self, client: redis.Redis, issuer: AnyIssuer, prefix: str = "") -> None:
        self._pool = client.connection_pool
        self._client = client
        self._issuer = issuer
        self._prefix = prefix

    def name_of(self, resource: str | bytes) -> bytes:
        """
        Return the name of the lock of a resource.

        Raises:
            ValueError: No lock may have it; the message says why.
        """
        text = resource.decode("utf-8", "surrogateescape") if isinstance(resource, bytes) else resource
        return keys.lock_key(self._prefix, text).encode("utf-8", "surrogateescape")

    def resource_of(self, name: bytes) -> bytes:
        """Return the name of a resource from that of its lock."""
        return name[len(self._prefix.encode()) :]

    def read(self, names: Sequence[bytes]) -> list[Resource]:
        """
        Return the resources whose locks have these names, known to the server or not.

        Raises:
            redis.exceptions.RedisError, IssuerError: They cannot be read.
        """
        with closing(Line(self._pool)) as line:
            raw = counter_scan.read(line, counter_scan.keys_of(names, self._prefix))
            return self._resources(line, _shown(raw, self._tokens(names)))

    def held(self, pattern: str) -> Iterator[Resource]:
        """
        Yield what is held of the resources with a counter whose names match; nobody asks who waits.

        Raises:
            ValueError: The pattern is malformed.
            redis.exceptions.RedisError: The server cannot be read.
        """
        query = Query(self._prefix, pattern, PAGE_SIZE)
        if counter_rows.are_listed(self._issuer):
            pages = counter_rows.scan(self._client, self._issuer, query)
        else:
            pages = counter_scan.scan(self._client, query)
        for raw in pages:
            yield from _rows(_present(raw, held=True), self._issuer, {})

    def find(self, pattern: str | None, cursor: str = "", *, held: bool = False, rows: int = 100) -> Listing:
        """
        Return a part of the resources with a counter, so many or a few more; fewer where the server has to look long.

        Args:
            pattern: Redis glob over resource names; None for all.
            cursor: Where to go on, from the part before.
            held: Only what is held.
            rows: How many are enough.

        Raises:
            ValueError: The pattern or the cursor is malformed.
            redis.exceptions.RedisError, IssuerError: The server cannot be read.
        """
        narrow, wide = Query(self._prefix, pattern, _NARROW), Query(self._prefix, pattern, _WIDE)
        if narrow.literal is not None:
            return Listing([each for each in self.read([self.name_of(narrow.literal)]) if _is_known(each, held)], "")
        found: dict[bytes, Resource] = {}
        latest, ends = 1, time.monotonic() + _SECONDS
        with closing(Line(self._pool)) as line:
            for _ in range(_CALLS):
                raw, cursor = self._follow(line, narrow if latest else wide, cursor)
                raw = _present(raw, held=held)
                latest = len(raw.names)
                # The server may name one twice.
                found |= {each.name: each for each in self._resources(line, raw)}
                if not cursor or len(found) >= rows or time.monotonic() > ends:
                    break
        return Listing([found[name] for name in sorted(found)], cursor)

    def _follow(self, line: Line, query: Query, cursor: str) -> tuple[RawPage, str]:
        if counter_rows.are_listed(self._issuer):
            return counter_rows.follow(line, self._issuer, query, cursor)
        if cursor and not (cursor.isascii() and cursor.isdigit() and int(cursor) < 2**64):
            raise ValueError(f"bad cursor {cursor!r}")
        raw, following = counter_scan.follow(line, query, cursor.encode() or b"0")
        return raw, (following or b"").decode()

    def _resources(self, line: Line, raw: RawPage) -> list[Resource]:
        return list(_rows(raw, self._issuer, _waiters(line, raw.names)))

    def _tokens(self, names: Sequence[bytes]) -> dict[int, int]:
        """Return the last tokens that are kept outside Redis, by the places of the names."""
        if not isinstance(self._issuer, ExternalIssuer):
            return {}
        texts = [name.decode("utf-8", "surrogateescape") for name in names]
        known = counter_rows.last_tokens(self._issuer, texts)
        return {at: known[text] for at, text in enumerate(texts) if text in known}


def _is_known(resource: Resource, held: bool) -> bool:
    status = resource.status
    return status.held or (not held and (status.token is not None or bool(status.note)))


def _present(raw: RawPage, *, held: bool) -> RawPage:
    places = sorted(raw.leases) if held else range(len(raw.names))
    return raw.only([at for at in places if raw.kinds.get(at) != "none"])


def _shown(raw: RawPage, tokens: dict[int, int]) -> RawPage:
    """Return what may be shown of locks that were asked for by name: their keys may be anybody's."""
    absent = {at for at, kind in raw.kinds.items() if kind == "none"}
    leases = {at: _owned(lease) if at in absent and at not in tokens else lease for at, lease in raw.leases.items()}
    stored = [b"%d" % tokens[at] if at in tokens else value for at, value in enumerate(raw.stored)]
    kinds = {at: kind for at, kind in raw.kinds.items() if at not in absent and at not in tokens}
    return raw._replace(stored=stored, leases=leases, kinds=kinds)


def _owned(lease: Lease) -> Lease:
    if lease.owner is None or is_owner_id(lease.owner):
        return lease
    return Lease(lease.remaining, None, _NOT_SHOWN)


def _rows(raw: RawPage, issuer: AnyIssuer, waiters: dict[int, int]) -> Iterator[Resource]:
    statuses = page_of(raw, issuer).statuses
    for at, (name, status) in enumerate(zip(raw.names, statuses, strict=True)):
        lease = raw.leases.get(at)
        yield Resource(name, lease.owner if lease else None, waiters.get(at, 0), status)


def _waiters(line: Line, names: Sequence[bytes]) -> dict[int, int]:
    queues = [keys.queue_key(name) for name in names]
    kinds: list[Any] = line.ask(b"TYPE", queues)
    places = [at for at, kind in enumerate(kinds) if kind == b"zset"]
    counts = line.ask(b"ZCOUNT", [queues[at] for at in places], _FIRST_WAITER, b"+inf")
    return dict(zip(places, counts, strict=True))
