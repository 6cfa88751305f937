"""Bytes in addresses and forms: names and owners may be anything, and must come back as they were."""

from __future__ import annotations

import re

_PLAIN = re.compile(rb"[^A-Za-z0-9-]")
_QUOTED = re.compile(rb"_([0-9A-Fa-f]{2})")


def quote(value: bytes) -> str:
    """Return text of letters, digits, ``-`` and ``_`` alone; not empty unless the value is."""
    return _PLAIN.sub(lambda match: b"_%02X" % match[0][0], value).decode()


def unquote(text: str) -> bytes:
    """Return what was quoted, here or by the admin itself, which leaves what is not ASCII as it is."""
    return _QUOTED.sub(lambda match: bytes([int(match[1], 16)]), text.encode("utf-8", "surrogateescape"))
