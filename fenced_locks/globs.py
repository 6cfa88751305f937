"""
Glob patterns as Redis understands them, checked here and matched here exactly as the server matches them.

``*`` stands for any bytes, ``?`` for one byte, ``[a-z]`` and ``[^a-z]`` for one byte of a class, and a backslash
takes the next character literally. Redis never refuses a pattern: it lets a typing error match something else, or
nothing.
"""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"[*?\[\\]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

# In the server's order: an escape, a range (whose end may be any byte, also "]" or a backslash), a single byte.
_CLASS_ITEM = re.compile(rb"\\(.)|([^\]])-(.)|([^\]])", re.DOTALL)


def escape(text: str) -> str:
    """Return a pattern that matches ``text`` and nothing else."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def head(pattern: str) -> str:
    """Return the literal text that a pattern begins with, or a part of it."""
    special = _SPECIAL.search(pattern)
    return pattern[: special.start()] if special else pattern


def literal(pattern: str) -> str | None:
    """Return the one text that a valid pattern matches, or None if it may match others."""
    if _SPECIAL.search(_ESCAPED.sub("", pattern)):
        return None
    return _ESCAPED.sub(r"\1", pattern)


def compile_glob(pattern: str) -> re.Pattern[bytes]:
    """
    Return a regular expression whose ``fullmatch`` on UTF-8 bytes agrees with the server.

    Raises:
        ValueError: The pattern is empty, ends in a lone backslash, has a ``[`` that nothing closes, or names
            characters outside ASCII in brackets, where Redis would see single bytes of them.
    """
    try:
        head, *rest = _sections(pattern.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise ValueError(f"bad pattern {pattern!r}: {error}") from error
    if not rest:
        return re.compile(head, re.DOTALL)
    *middle, tail = rest
    # A section between two stars may settle for its first place, as in the server: nothing is tried twice.
    steps = (b"(?=(?P<s%d>.*?%b))(?P=s%d)" % (n, section, n) for n, section in enumerate(middle) if section)
    return re.compile(head + b"".join(steps) + b".*" + tail, re.DOTALL)


def _sections(pattern: bytes) -> list[bytes]:
    """Return the regular expressions of the parts between the stars."""
    if not pattern:
        raise ValueError("it is empty")
    sections = [b""]
    at = 0
    while at < len(pattern):
        if pattern[at : at + 1] == b"*":
            sections.append(b"")
            at += 1
        else:
            part, at = _one_byte(pattern, at)
            sections[-1] += part
    return sections


def _one_byte(pattern: bytes, at: int) -> tuple[bytes, int]:
    char = pattern[at : at + 1]
    if char == b"?":
        return b".", at + 1
    if char == b"[":
        return _class(pattern, at + 1)
    if char == b"\\":
        at += 1
        char = pattern[at : at + 1]
        if not char:
            raise ValueError("it ends in a backslash that escapes nothing")
    return re.escape(char), at + 1


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while pattern[at : at + 1] != b"]":
        item = _CLASS_ITEM.match(pattern, at)
        if item is None:
            raise ValueError("it has a '[' without its closing ']'")
        members |= _members(item)
        at = item.end()
    return _class_regex(members, negated), at + 1


def _members(item: re.Match[bytes]) -> set[int]:
    escaped, first, last, single = item.groups()
    low, high = sorted((ord(first or escaped or single), ord(last or escaped or single)))
    if high > 127:
        raise ValueError("it has a character outside ASCII in brackets, which match single bytes")
    return set(range(low, high + 1))


def _class_regex(members: set[int], negated: bool) -> bytes:
    if not members:
        return b"." if negated else b"(?!)"
    return b"[%b%b]" % (b"^" if negated else b"", b"".join(b"\\x%02x" % member for member in sorted(members)))
