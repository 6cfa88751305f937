"""
Every Redis key name of this package; nothing else builds one.

The lock key is the lock's name, so that a plain redis-py lock of that name excludes a fenced one. The companion
keys share its cluster slot by a hash tag: ``fence:{order:1001}``. Redis hashes what stands between the first ``{``
and the next ``}`` if that is not empty, and the whole key otherwise.
"""

from __future__ import annotations

COUNTER_PREFIX = "fence:"
COMPANION_PREFIXES = (COUNTER_PREFIX, "wake:", "queue:")


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


def name_and_key(name: object, encoding: str) -> tuple[str, bytes]:
    """
    Return the name of a lock as text, for messages and companion keys, and as the key that redis-py would send.

    Raises:
        TypeError: Neither a string nor bytes.
        ValueError: Text that the client would not encode as UTF-8.
    """
    if isinstance(name, bytes):
        return name.decode(errors="surrogateescape"), name
    if not isinstance(name, str):
        raise TypeError(f"name of the lock must be a string or bytes, not {name!r}")
    if not name.isascii() and encoding.lower().replace("-", "") != "utf8":
        raise ValueError(f"name of the lock must be ASCII or bytes with a client that encodes as {encoding}: {name!r}")
    return name, name.encode()


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
    return COUNTER_PREFIX + (name if _hash_tag(name) is not None else "{" + name + "}")


def lock_name(counter: str) -> str | None:
    """Return the name of the lock whose counter this key is, or None if it is no counter key."""
    if not counter.startswith(COUNTER_PREFIX):
        return None
    tail = counter[len(COUNTER_PREFIX) :]
    tag = _hash_tag(tail)
    if tag is None:
        return None
    return tag if tail == "{" + tag + "}" else tail


def _hash_tag(key: str) -> str | None:
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else None
