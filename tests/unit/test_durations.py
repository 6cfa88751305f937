from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenced_locks.durations import to_ms, to_seconds, to_seconds_or_none


@pytest.mark.parametrize(("value", "seconds"), [(3, 3.0), (0.25, 0.25), (timedelta(minutes=2), 120.0)])
def test_int_float_and_timedelta_are_seconds(value, seconds):
    assert to_seconds("timeout", value) == seconds


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.5, timedelta(0), float("nan"), float("inf"), 1e300])
def test_what_is_not_positive_and_finite_is_refused_by_name_and_value(value):
    with pytest.raises(ValueError, match=r"^timeout must be .*got ") as caught:
        to_seconds("timeout", value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["3", None, True, b"3", [3]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError, match="timeout must be seconds"):
        to_seconds("timeout", value)


def test_zero_and_none_where_they_are_allowed():
    assert to_seconds("blocking_timeout", 0, zero=True) == 0
    assert to_seconds_or_none("timeout", None) is None


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_milliseconds_are_whole_never_less_than_asked_and_at_least_one(seconds):
    ms = to_ms(seconds)
    assert isinstance(ms, int)
    assert ms >= 1
    assert seconds * 1000 - 1e-3 <= ms < seconds * 1000 + 1 + 1e-3


@pytest.mark.parametrize(("seconds", "ms"), [(0.0005, 1), (0.1 + 0.2, 300), (1.0001, 1001), (10, 10_000)])
def test_milliseconds_are_rounded_up(seconds, ms):
    assert to_ms(seconds) == ms
