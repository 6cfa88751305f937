"""
Walk over the counters of a server, page by page, with what belongs to each.

While the caller works on a page, the server prepares the next one; no more than these two are in memory. A page is
kept in columns, because a million rows must not take much longer than to read their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import redis

from . import globs
from .keys import COUNTER_PREFIX, counter_key, lock_name
from .locks.core import HANDED_OVER, is_ticket
from .reading_line import Line, command, packed

# What PTTL replies where there is no key.
_EXPIRED = -2
_OPEN, _, _CLOSE = counter_key("name").partition("name")
_PLAIN = re.compile(rb"^%b([^{}\n]+)%b$" % (re.escape(_OPEN.encode()), re.escape(_CLOSE.encode())), re.MULTILINE)


class Lease(NamedTuple):
    """
    Why a resource is taken.

    Attributes:
        remaining: Seconds left; None without end.
        owner: Value of the lock key; None if it cannot be read or names no owner.
        note: What is to be said of the lock key; empty if nothing is.
    """

    remaining: float | None
    owner: bytes | None
    note: str = ""


class RawPage(NamedTuple):
    """
    What the server said of one page of counters, in columns.

    Attributes:
        names: The lock keys.
        resources: Names of the resources, as they are shown.
        stored: Values of the counters; None for those of another type and those that are gone by now.
        leases: The leases among them, by place.
        kinds: Types of the counters without a value, by place; ``none`` for those that are gone.
    """

    names: list[bytes]
    resources: list[str]
    stored: list[bytes | None]
    leases: dict[int, Lease]
    kinds: dict[int, str]

    def only(self, places: Sequence[int]) -> RawPage:
        """Return a page of some of the counters."""
        return RawPage(
            [self.names[at] for at in places],
            [self.resources[at] for at in places],
            [self.stored[at] for at in places],
            {new: self.leases[old] for new, old in enumerate(places) if old in self.leases},
            {new: self.kinds[old] for new, old in enumerate(places) if old in self.kinds},
        )


class Keys(NamedTuple):
    """What is asked for, in columns: names as they are shown, counter keys, lock keys."""

    resources: list[str]
    counters: list[bytes]
    locks: list[bytes]


_NO_KEYS = Keys([], [], [])


class Query:
    """
    Which counters to look for.

    Args:
        prefix: The setting ``KEY_PREFIX``; names that do not start with it are left out.
        pattern: Redis glob over resource names; None for all.
        page_size: How many keys the server looks at for one page.

    Attributes:
        prefix: As it was given.
        page_size: As it was given.
        literal: The one resource that the pattern names; None if it may match others.
        beginning: What the names of all locks that are wanted begin with.

    Raises:
        ValueError: The pattern is malformed.
    """

    def __init__(self, prefix: str, pattern: str | None, page_size: int) -> None:
        self._glob = None if pattern is None else globs.compile_glob(pattern)
        self.literal = None if pattern is None else globs.literal(pattern)
        self.prefix, self.page_size = prefix, page_size
        self.beginning = prefix + globs.head(pattern or "")
        self._only = None if self.literal is None else encode(counter_key(prefix + self.literal))
        self._prefix = encode(prefix)
        # Most names stand in braces of ours, those with a hash tag of their own do not: ask for more, and look here.
        match = encode(f"{COUNTER_PREFIX}*{globs.escape(prefix)}{pattern or ''}*")
        self._options = (b"MATCH", match, b"COUNT", b"%d" % page_size)

    def start(self) -> tuple[Keys, bytes | None]:
        """Return the keys to begin with, and the cursor of the first SCAN: a single name needs none."""
        return (_NO_KEYS, b"0") if self._only is None else (self._keys([self._only]), None)

    def follow(self, cursor: bytes, batch: list[bytes]) -> tuple[Keys, bytes | None]:
        """Return what the reply of a SCAN leads to."""
        # It may name a key twice.
        return self._keys(list(dict.fromkeys(batch))), None if cursor == b"0" else cursor

    def commands(self, keys: Keys, cursor: bytes | None) -> list[bytes]:
        """Return the commands that read these keys and move the cursor on; none at the end."""
        commands = _commands(keys) if keys.counters else []
        if cursor:
            commands.append(command(b"SCAN", 5, packed([cursor, *self._options])))
        return commands

    def _keys(self, counters: list[bytes]) -> Keys:
        locks = _lock_names(counters)
        if self._glob or self._prefix or None in locks:
            pairs = [(counter, name) for counter, name in zip(counters, locks, strict=True) if self.wants(name)]
            counters, locks = [counter for counter, _ in pairs], [name for _, name in pairs]
        names = [name for name in locks if name]
        return Keys(_texts(names, len(self._prefix)), counters, names)

    def wants(self, name: bytes | None) -> bool:
        """Return whether the lock of this name is asked for."""
        if name is None or name == self._prefix or not name.startswith(self._prefix):
            return False
        return self._glob is None or self._glob.fullmatch(name, len(self._prefix)) is not None


def scan(client: redis.Redis, query: Query) -> Iterator[RawPage]:
    """Yield the pages that are not empty, on a connection of its own beside the client's pool."""
    with closing(Line(client.connection_pool)) as line:
        keys, cursor = query.start()
        page = None
        while commands := query.commands(keys, cursor):
            line.send(*commands)
            if page:
                yield page
            replies = line.replies()
            page = _read(line, keys, *replies[:2]) if keys.counters else None
            keys, cursor = query.follow(*replies[-1]) if cursor else (_NO_KEYS, None)
        if page:
            yield page


def follow(line: Line, query: Query, cursor: bytes) -> tuple[RawPage, bytes | None]:
    """Return what one SCAN from this cursor finds, and the cursor to go on from; None at the end."""
    line.send(*query.commands(_NO_KEYS, cursor))
    keys, following = query.follow(*line.replies()[0])
    return read(line, keys), following


def read(line: Line, keys: Keys) -> RawPage:
    """Return what the server has under these keys."""
    if not keys.counters:
        return RawPage([], [], [], {}, {})
    line.send(*_commands(keys))
    return _read(line, keys, *line.replies())


def keys_of(names: Sequence[bytes], prefix: str) -> Keys:
    """Return the keys of locks that are known by name; all have this prefix."""
    counters = [encode(counter_key(name.decode("utf-8", "surrogateescape"))) for name in names]
    return Keys(_texts(list(names), len(encode(prefix))), counters, list(names))


def _commands(keys: Keys) -> list[bytes]:
    counters, locks, number = packed(keys.counters), packed(keys.locks), len(keys.counters)
    # One MGET, so that a token and an owner belong together.
    return [command(b"MGET", 2 * number, counters + locks), command(b"EXISTS", number, locks)]


def _read(line: Line, keys: Keys, values: list[bytes | None], existing: int) -> RawPage:
    stored, owners = values[: len(keys.counters)], values[len(keys.counters) :]
    leases = _leases(line, keys.locks, owners, existing)
    return RawPage(keys.locks, keys.resources, stored, leases, _kinds(line, keys.counters, stored))


def _leases(line: Line, locks: list[bytes], owners: list[bytes | None], existing: int) -> dict[int, Lease]:
    taken = {at: "string" for at, owner in enumerate(owners) if owner is not None} if existing else {}
    if existing != len(taken):
        # MGET returns None for a key of another type too. Such a key keeps the resource locked just as well.
        taken |= {at: kind for at, kind in _kinds(line, locks, owners).items() if kind not in ("none", "string")}
    ends = line.ask(b"PTTL", [locks[at] for at in taken])
    return {
        at: _lease(owners[at], kind, end)
        for (at, kind), end in zip(taken.items(), ends, strict=True)
        if end != _EXPIRED
    }


def _lease(owner: bytes | None, kind: str, end_ms: int) -> Lease:
    remaining = None if end_ms < 0 else end_ms / 1000
    if owner is None:
        return Lease(remaining, None, f"lock key is a {kind}")
    if not owner:
        return Lease(remaining, None, "lock key is empty")
    # A ticket is for the waiter alone: whoever knows it may take the lock.
    return Lease(remaining, None, HANDED_OVER) if is_ticket(owner) else Lease(remaining, owner)


def _kinds(line: Line, keys: list[bytes], values: list[bytes | None]) -> dict[int, str]:
    """Return the types of the keys without a value, by their place."""
    places = [at for at, value in enumerate(values) if value is None] if None in values else []
    kinds = line.ask(b"TYPE", [keys[at] for at in places])
    return {at: kind.decode() for at, kind in zip(places, kinds, strict=True)}


def _lock_names(counters: list[bytes]) -> Sequence[bytes | None]:
    lines = b"\n".join(counters)
    names = _PLAIN.findall(lines)
    if len(names) == len(counters) == lines.count(b"\n") + 1:
        # Each key is a line, and each line a plain key: no need to take them apart one by one.
        return names
    return [_lock_name(counter) for counter in counters]


def _lock_name(counter: bytes) -> bytes | None:
    name = lock_name(counter.decode("utf-8", "surrogateescape"))
    return None if name is None else encode(name)


def _texts(names: list[bytes], skip: int) -> list[str]:
    if skip:
        names = [name[skip:] for name in names]
    try:
        return list(map(bytes.decode, names))
    except UnicodeDecodeError:
        return list(map(show, names))


def show(value: bytes) -> str:
    """Return text for people; what is no UTF-8 becomes an escape."""
    return value.decode("utf-8", "backslashreplace")


def encode(text: str) -> bytes:
    """Return the bytes of a name that is known as text."""
    return text.encode("utf-8", "surrogateescape")
