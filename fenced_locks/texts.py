"""Texts for people, on terminals and pages."""

from __future__ import annotations

import re

_CLIENT = re.compile(r"<redis\.client\.Redis\(.*?\bhost=([^,)]*),port=(\d+).*?\)>\)>\)>")


def printable(text: str) -> str:
    """Return a text with escapes for what cannot be printed."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def one_line(error: BaseException) -> str:
    """Return the message of an error, on one line, with the address of a client that redis-py quotes in full."""
    return _CLIENT.sub(r"\1:\2", " ".join(str(error).split()))
