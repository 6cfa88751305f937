"""Texts for people, on terminals and pages."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with escapes for what cannot be printed."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def one_line(error: BaseException) -> str:
    """Return the message of an error, on one line."""
    return " ".join(str(error).split())
