"""Durations: seconds as int, float or timedelta, cast in one place; whole milliseconds towards Redis."""

from __future__ import annotations

import math
from datetime import timedelta
from numbers import Real
from typing import TypeAlias

from .arguments import shown

Duration: TypeAlias = int | float | timedelta

# Redis adds an expiry to its clock in signed 64-bit milliseconds; this stays far below and is 285,000 years.
_MAX_SECONDS = 2**53 // 1000


def to_seconds(argument: str, value: object, *, zero: bool = False) -> float:
    """
    Return ``value`` in seconds.

    Args:
        argument: Name of the argument or setting, for the error message.
        value: Seconds as int or float, or a ``timedelta``.
        zero: Whether 0 is allowed.

    Raises:
        TypeError: Not a number (booleans are not) and not a ``timedelta``.
        ValueError: Negative, not finite, too large, or 0 where that is not allowed.
    """
    seconds = _cast(argument, value)
    # Written so that NaN fails.
    if not (0 < seconds <= _MAX_SECONDS or (zero and seconds == 0)):
        bounds = "0 or more" if zero else "greater than 0"
        raise ValueError(f"{argument} must be {bounds} and finite, in seconds; got {shown(value)}")
    return seconds


def _cast(argument: str, value: object) -> float:
    # The common kinds first: an abstract class is slow to ask.
    if type(value) is float or type(value) is int:
        return _float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{argument} must be seconds (int or float) or a timedelta, not {value!r}")
    return _float(value)


def _float(value: Real | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def to_seconds_or_none(argument: str, value: object, *, zero: bool = False) -> float | None:
    """Like ``to_seconds``, but None stays None: no end, no limit."""
    return None if value is None else to_seconds(argument, value, zero=zero)


def to_ms(seconds: float) -> int:
    """Return whole milliseconds, rounded up, at least 1: a lease is never shorter than what was asked for."""
    # Rounding to the nanosecond first keeps 0.1 + 0.2 from becoming 301 ms.
    return max(1, math.ceil(round(seconds * 1000, 6)))
