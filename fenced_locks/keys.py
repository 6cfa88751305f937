"""
Every Redis key name of this package; nothing else builds one.

The lock key is the lock's name, so that a plain redis-py lock of that name excludes a fenced one. The companion
keys share its cluster slot by a hash tag: ``fence:{order:1001}``. Redis hashes what stands between the first ``{``
and the next ``}`` if that is not empty, and the whole key otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

COUNTER_PREFIX = "fence:"
_QUEUE_PREFIX = "queue:"
_WAKE_PREFIX = "wake:"
COMPANION_PREFIXES = (COUNTER_PREFIX, _WAKE_PREFIX, _QUEUE_PREFIX)


def lock_key(prefix: str, resource: str) -> str:
    """
    Return the name of the lock of a resource: ``prefix`` + ``resource``, checked.

    Raises:
        TypeError: The resource is not a string.
        ValueError: The name is refused; the message says why.
    """
    if not isinstance(resource, str):
        raise TypeError(f"resource must be a string, not {resource!r}")
    if not resource:
        raise ValueError("resource must not be empty")
    return check_name(prefix + resource)


class LockKeys(NamedTuple):
    """
    The keys of one lock, as they are sent.

    Attributes:
        resource: Name of the lock as text, for messages.
        lock: The lock key, as redis-py would send it.
        counter: The key of the last fence token.
        queue: The key of the waiters, in order of their arrival.
        wake: The key of the list on which they block.
    """

    resource: str
    lock: bytes
    counter: bytes
    queue: bytes
    wake: bytes


def keys_of(name: object, encoding: str) -> LockKeys:
    """
    Return the keys of the lock called ``name``.

    Args:
        name: A string, or bytes.
        encoding: How the client encodes strings.

    Raises:
        TypeError: Neither a string nor bytes.
        ValueError: A name that no lock may have, or text that has no form in UTF-8, or that the client would encode
            otherwise.
    """
    if not isinstance(name, (str, bytes)):
        raise TypeError(f"name of the lock must be a string or bytes, not {name!r}")
    if isinstance(name, str) and not name.isascii() and encoding.lower().replace("-", "") != "utf8":
        raise ValueError(f"name of the lock must be ASCII or bytes with a client that encodes as {encoding}: {name!r}")
    return _keys_of(name)


# Locks are made anew for every use, often of the same few resources.
@lru_cache(maxsize=1024)
def _keys_of(name: str | bytes) -> LockKeys:
    text = check_name(name.decode(errors="surrogateescape") if isinstance(name, bytes) else name)
    try:
        key = name if isinstance(name, bytes) else name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"name of the lock has no form in UTF-8: {name!r}") from error
    prefixes = (COUNTER_PREFIX, _QUEUE_PREFIX, _WAKE_PREFIX)
    return LockKeys(text, key, *[(prefix + _tagged(text)).encode(errors="surrogateescape") for prefix in prefixes])


def check_name(name: str) -> str:
    """
    Return ``name`` if a lock may have it.

    Raises:
        ValueError: Empty, in the namespace of the companion keys, or with braces that would put the companion
            keys into another cluster slot or make two locks share them.
    """
    if not name:
        raise ValueError("name of the lock must not be empty")
    if name.startswith(COMPANION_PREFIXES):
        prefix = next(p for p in COMPANION_PREFIXES if name.startswith(p))
        raise ValueError(f"name of the lock must not start with {prefix!r}, which is for companion keys: {name!r}")
    tag = _hash_tag(name)
    if tag is None and "}" in name:
        raise ValueError(f"name of the lock has a '}}' but no valid hash tag like '{{7}}': {name!r}")
    if tag is not None and name == "{" + tag + "}":
        raise ValueError(
            f"name of the lock must not be a hash tag alone, it would share the counter of {tag!r}: {name!r}"
        )
    return name


def counter_key(name: str) -> str:
    """Return the key that keeps the last fence token of the lock called ``name``: ``fence:{order:1001}``."""
    return COUNTER_PREFIX + _tagged(name)


def queue_key(name: bytes) -> bytes:
    """Return the key of the waiters of the lock called ``name``: ``queue:{order:1001}``."""
    return (_QUEUE_PREFIX + _tagged(name.decode("utf-8", "surrogateescape"))).encode("utf-8", "surrogateescape")


def lock_name(counter: str) -> str | None:
    """Return the name of the lock whose counter this key is, or None if it is no counter key."""
    if not counter.startswith(COUNTER_PREFIX):
        return None
    tail = counter[len(COUNTER_PREFIX) :]
    tag = _hash_tag(tail)
    if tag is None:
        return None
    return tag if tail == "{" + tag + "}" else tail


def _tagged(name: str) -> str:
    return name if _hash_tag(name) is not None else "{" + name + "}"


def _hash_tag(key: str) -> str | None:
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else None
