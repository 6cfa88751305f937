"""The short way through a page of keys leads to the same names as the long one."""

from hypothesis import example, given
from hypothesis import strategies as st

from fenced_locks.counter_scan import Query, _lock_names
from fenced_locks.keys import check_name, counter_key, lock_name

PIECES = st.sampled_from([b"fence:", b"fence:{", b"{", b"}", b"\n", b"a", b":", b"\xff", "é".encode()])
KEYS = st.lists(PIECES, max_size=6).map(b"".join)


def one_by_one(keys):
    names = [lock_name(key.decode("utf-8", "surrogateescape")) for key in keys]
    return [None if name is None else name.encode("utf-8", "surrogateescape") for name in names]


@given(st.lists(st.one_of(KEYS, st.just(b"fence:{order:1}")), max_size=5))
@example([b"fence:{a}\nfence:{b}", b"other"])
@example([b"fence:{a}\n"])
@example([b"fence:{a\nb}"])
@example([b"\nfence:{a}", b"fence:{b}"])
@example([b"fence:{a", b"}"])
def test_a_page_gives_the_same_names_as_its_keys_one_by_one(keys):
    assert list(_lock_names(keys)) == one_by_one(keys)


@given(st.text(alphabet="a{}:é", min_size=1, max_size=6))
def test_every_name_that_a_lock_may_have_is_found_by_its_counter(name):
    try:
        check_name(name)
    except ValueError:
        return
    assert list(_lock_names([counter_key(name).encode()])) == [name.encode()]


def test_a_key_that_a_scan_names_twice_is_listed_once():
    keys, cursor = Query("", None, 10).follow(b"0", [b"fence:{a}", b"fence:{b}", b"fence:{a}"])
    assert keys.resources == ["a", "b"]
    assert cursor is None


def test_a_name_that_is_the_prefix_alone_is_no_resource():
    keys, _ = Query("shop:", None, 10).follow(b"7", [b"fence:{shop:}", b"fence:{shop:a}", b"fence:{other:a}"])
    assert keys.resources == ["a"]
