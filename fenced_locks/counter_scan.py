"""
Walk over the counters of a server, page by page, with what belongs to each.

While the caller works on a page, the server prepares the next one; no more than these two are in memory. A page is
kept in columns, because a million rows must not take much longer than to read their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from . import globs
from .keys import COUNTER_PREFIX, counter_key, lock_name

_REPLY_TIMEOUT = 10.0
# What PTTL replies where there is no key.
_EXPIRED = -2
_OPEN, _, _CLOSE = counter_key("name").partition("name")
_PLAIN = re.compile(rb"^%b([^{}\n]+)%b$" % (re.escape(_OPEN.encode()), re.escape(_CLOSE.encode())), re.MULTILINE)


class Lease(NamedTuple):
    """
    Why a resource is taken.

    Attributes:
        remaining: Seconds left; None without end.
        owner: Value of the lock key; None if it cannot be read.
        note: What is wrong with the lock key; empty if nothing is.
    """

    remaining: float | None
    owner: str | None
    note: str = ""


class RawPage(NamedTuple):
    """
    What the server said of one page of counters, in columns.

    Attributes:
        resources: Names of the resources.
        stored: Values of the counters; None for those of another type and those that are gone by now.
        leases: The leases among them, by place.
        kinds: Types of the counters without a value, by place; ``none`` for those that are gone.
    """

    resources: list[str]
    stored: list[bytes | None]
    leases: dict[int, Lease]
    kinds: dict[int, str]

    def only(self, places: Sequence[int]) -> RawPage:
        """Return a page of some of the counters."""
        return RawPage(
            [self.resources[at] for at in places],
            [self.stored[at] for at in places],
            {new: self.leases[old] for new, old in enumerate(places) if old in self.leases},
            {new: self.kinds[old] for new, old in enumerate(places) if old in self.kinds},
        )


class _Keys(NamedTuple):
    resources: list[str]
    counters: list[bytes]
    locks: list[bytes]


_NO_KEYS = _Keys([], [], [])


class Query:
    """
    Which counters to look for.

    Args:
        prefix: The setting ``KEY_PREFIX``; names that do not start with it are left out.
        pattern: Redis glob over resource names; None for all.
        page_size: How many keys the server looks at for one page.

    Raises:
        ValueError: The pattern is malformed.
    """

    def __init__(self, prefix: str, pattern: str | None, page_size: int) -> None:
        self._glob = None if pattern is None else globs.compile_glob(pattern)
        literal = None if pattern is None else globs.literal(pattern)
        self._only = None if literal is None else _encode(counter_key(prefix + literal))
        self._prefix = _encode(prefix)
        # Most names stand in braces of ours, those with a hash tag of their own do not: ask for more, and look here.
        match = _encode(f"{COUNTER_PREFIX}*{globs.escape(prefix)}{pattern or ''}*")
        self._options = (b"MATCH", match, b"COUNT", b"%d" % page_size)

    def start(self) -> tuple[_Keys, bytes | None]:
        """Return the keys to begin with, and the cursor of the first SCAN: a single name needs none."""
        return (_NO_KEYS, b"0") if self._only is None else (self._keys([self._only]), None)

    def follow(self, cursor: bytes, batch: list[bytes]) -> tuple[_Keys, bytes | None]:
        """Return what the reply of a SCAN leads to."""
        # It may name a key twice.
        return self._keys(list(dict.fromkeys(batch))), None if cursor == b"0" else cursor

    def commands(self, keys: _Keys, cursor: bytes | None) -> list[bytes]:
        """Return the commands that read these keys and move the cursor on; none at the end."""
        commands: list[bytes] = []
        if keys.counters:
            counters, locks, number = _packed(keys.counters), _packed(keys.locks), len(keys.counters)
            # One MGET, so that a token and an owner belong together.
            commands += [_command(b"MGET", 2 * number, counters + locks), _command(b"EXISTS", number, locks)]
        if cursor:
            commands.append(_command(b"SCAN", 5, _packed([cursor, *self._options])))
        return commands

    def _keys(self, counters: list[bytes]) -> _Keys:
        locks = _lock_names(counters)
        if self._glob or self._prefix or None in locks:
            pairs = [(counter, name) for counter, name in zip(counters, locks, strict=True) if self._wants(name)]
            counters, locks = [counter for counter, _ in pairs], [name for _, name in pairs]
        names = [name for name in locks if name]
        return _Keys(_texts(names, len(self._prefix)), counters, names)

    def _wants(self, name: bytes | None) -> bool:
        if name is None or name == self._prefix or not name.startswith(self._prefix):
            return False
        return self._glob is None or self._glob.fullmatch(name, len(self._prefix)) is not None


def scan(client: redis.Redis, query: Query) -> Iterator[RawPage]:
    """Yield the pages that are not empty, on a connection of its own beside the client's pool."""
    with closing(_Line(client.connection_pool)) as line:
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


class _Line:
    """A connection that is made as the pool makes its own, but alone, to be sent to ahead of time."""

    def __init__(self, pool: Any) -> None:
        self._connection = pool.connection_class(**pool.connection_kwargs)
        # A server that is down or mute is to be reported, not waited for.
        self._connection.retry = Retry(NoBackoff(), 0)
        for name in ("socket_timeout", "socket_connect_timeout"):
            setattr(self._connection, name, getattr(self._connection, name, None) or _REPLY_TIMEOUT)
        self._sent: tuple[bytes, ...] = ()

    def send(self, *commands: bytes) -> None:
        self._sent = commands
        try:
            self._transmit()
        except redis.ConnectionError:
            self._transmit_again()

    def replies(self) -> list[Any]:
        """Return the replies to what was sent last, undecoded: names and owners may be any bytes."""
        try:
            return self._receive()
        except redis.ConnectionError:
            self._transmit_again()
            return self._receive()

    def _transmit(self) -> None:
        self._connection.send_packed_command([b"".join(self._sent)])

    def _transmit_again(self) -> None:
        # A server may close what is idle while somebody studies the page before. All commands only read.
        self.close()
        self._transmit()

    def _receive(self) -> list[Any]:
        return [self._connection.read_response(disable_decoding=True) for _ in self._sent]

    def ask(self, command: bytes, keys: Sequence[bytes]) -> list[Any]:
        """Return the replies to one command per key."""
        if not keys:
            return []
        self.send(*[_command(command, 1, _packed([key])) for key in keys])
        return self.replies()

    def close(self) -> None:
        self._connection.disconnect()


def _packed(arguments: Sequence[bytes]) -> bytes:
    # redis-py packs a command at two to six times the price, and the lock keys go out twice.
    return b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])


def _command(name: bytes, number: int, packed: bytes) -> bytes:
    """Return a command and its packed arguments in the form in which Redis reads it (RESP)."""
    return b"*%d\r\n%b%b" % (number + 1, _packed([name]), packed)


def _read(line: _Line, keys: _Keys, values: list[bytes | None], existing: int) -> RawPage:
    stored, owners = values[: len(keys.counters)], values[len(keys.counters) :]
    leases = _leases(line, keys.locks, owners, existing)
    return RawPage(keys.resources, stored, leases, _kinds(line, keys.counters, stored))


def _leases(line: _Line, locks: list[bytes], owners: list[bytes | None], existing: int) -> dict[int, Lease]:
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
    return Lease(remaining, show(owner))


def _kinds(line: _Line, keys: list[bytes], values: list[bytes | None]) -> dict[int, str]:
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
    return None if name is None else _encode(name)


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


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
