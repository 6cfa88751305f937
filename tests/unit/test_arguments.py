import pytest

from fenced_locks.arguments import checked_flag, checked_names
from fenced_locks.durations import to_seconds
from fenced_locks.fields import checked_token
from fenced_locks.locks.advancing import checked_at_least


@pytest.mark.parametrize("value", ["no", "yes", 0, 1, None])
def test_what_only_counts_as_true_or_false_is_refused_by_name_and_value(value):
    with pytest.raises(TypeError, match=rf"^repeatable must be True or False, not {value!r}$"):
        checked_flag("repeatable", value)


def test_names_are_a_list_whatever_they_come_in():
    assert checked_names("fields", (name for name in "ab")) == ["a", "b"]
    assert checked_names("fields", []) == []


@pytest.mark.parametrize("value", ["amount", b"amount", None, 5, ["amount", None]])
def test_what_is_no_names_is_refused_by_name_and_value(value):
    with pytest.raises(TypeError, match=r"^fields must be names, in a list or the like, not ") as caught:
        checked_names("fields", value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "check",
    [checked_token, checked_at_least, lambda value: to_seconds("timeout", value)],
    ids=["token", "least", "time"],
)
def test_a_number_that_python_does_not_write_out_is_refused_by_name_and_size(check):
    with pytest.raises(ValueError, match=r"^(token|at_least|timeout) must be .*; got an int of 16610 bits$"):
        check(10**5000)
