"""Arguments that are no durations, checked in one place: an error names the argument and its value."""

from __future__ import annotations

from collections.abc import Iterable


def shown(value: object) -> str:
    """Return a value for a message; of an int that is too long for Python to write, its size."""
    try:
        return repr(value)
    except ValueError:
        if not isinstance(value, int):
            raise
        return f"an int of {value.bit_length()} bits"


def checked_flag(argument: str, value: object) -> bool:
    """
    Return ``value`` if it is True or False.

    Raises:
        TypeError: It is not; ``"no"`` would count as True.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, not {value!r}")
    return value


def checked_names(argument: str, value: object) -> list[str]:
    """
    Return names as a list, which can be gone through more than once.

    Raises:
        TypeError: A string, whose letters would be taken for names, or no iterable of strings.
    """
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        names = list(value)
        if all(isinstance(name, str) for name in names):
            return names
    raise TypeError(f"{argument} must be names, in a list or the like, not {value!r}")
