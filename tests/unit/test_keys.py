from itertools import product

import pytest
from redis.crc import key_slot

from fenced_locks import keys


def accepted(name):
    try:
        return keys.check_name(name)
    except ValueError:
        return None


SHORT_NAMES = ["".join(letters) for length in range(1, 8) for letters in product("a{}", repeat=length)]


def test_the_counter_is_always_in_the_slot_of_its_lock():
    for name in filter(accepted, SHORT_NAMES):
        assert key_slot(keys.counter_key(name).encode()) == key_slot(name.encode()), name


def test_no_two_locks_share_a_counter_and_none_is_named_like_one():
    names = list(filter(accepted, SHORT_NAMES))
    counters = {keys.counter_key(name) for name in names}
    assert len(counters) == len(names) > 100
    assert counters.isdisjoint(names)


def test_a_counter_key_tells_the_name_of_its_lock():
    for name in filter(accepted, SHORT_NAMES):
        assert keys.lock_name(keys.counter_key(name)) == name


def test_a_name_without_braces_is_wrapped_and_one_with_its_own_tag_is_kept():
    assert keys.counter_key("order:1") == "fence:{order:1}"
    assert keys.counter_key("order:{7}:x") == "fence:order:{7}:x"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "must not be empty"),
        ("a}b", "no valid hash tag"),
        ("a{}b", "no valid hash tag"),
        ("{x}", "hash tag alone"),
        ("fence:{order:1}", "companion keys"),
        ("wake:x", "companion keys"),
        ("queue:x", "companion keys"),
    ],
)
def test_names_that_cannot_be_are_refused_with_the_reason(name, reason):
    with pytest.raises(ValueError, match=reason):
        keys.check_name(name)


def test_text_that_cannot_be_encoded_is_refused_by_its_value():
    with pytest.raises(ValueError, match=r"^name of the lock has no form in UTF-8: 'a\\ud800'$"):
        keys.keys_of("a\ud800", "utf-8")


def test_the_prefix_is_part_of_the_lock_key_and_is_checked_with_it():
    assert keys.lock_key("shop:", "order:1") == "shop:order:1"
    with pytest.raises(ValueError, match="companion keys"):
        keys.lock_key("fence:", "order:1")


@pytest.mark.parametrize("resource", [None, 7, b"order:1"])
def test_a_resource_is_a_string(resource):
    with pytest.raises(TypeError, match="resource must be a string"):
        keys.lock_key("", resource)


def test_an_empty_resource_is_refused_even_with_a_prefix():
    with pytest.raises(ValueError, match="resource must not be empty"):
        keys.lock_key("shop:", "")


@pytest.mark.parametrize("key", ["order:1", "fence:order:1", "fence:", "wake:{x}"])
def test_what_is_no_counter_key_names_no_lock(key):
    assert keys.lock_name(key) is None
