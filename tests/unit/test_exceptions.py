import pickle

import pytest
import redis.exceptions

import fenced_locks
from fenced_locks import exceptions as errors

BASES = {
    errors.LockNotAcquired: redis.exceptions.LockError,
    errors.NotHeld: redis.exceptions.LockError,
    errors.LeaseHasNoEnd: redis.exceptions.LockError,
    errors.LeaseLost: redis.exceptions.LockNotOwnedError,
    errors.OutcomeUnknown: redis.exceptions.ConnectionError,
    errors.TransactionConflict: redis.exceptions.WatchError,
    errors.InvalidTransaction: redis.exceptions.RedisError,
    errors.StaleToken: Exception,
    errors.IssuerError: Exception,
}


@pytest.mark.parametrize(("error", "base"), BASES.items())
def test_every_error_has_the_one_root_and_keeps_its_redis_base(error, base):
    assert issubclass(error, errors.FencedLockError)
    assert issubclass(error, base)


def test_the_tree_in_the_docstring_is_the_tree():
    assert all(error.__name__ in errors.__doc__ for error in BASES)


def test_errors_survive_pickling_with_what_they_know():
    busy = errors.LockNotAcquired("'order:1' is busy", "order:1")
    busy.owner_id, busy.remaining = "host:1:x", 2.5
    copy = pickle.loads(pickle.dumps(busy))
    assert (str(copy), copy.resource, copy.lock_name) == ("'order:1' is busy", "order:1", "order:1")
    assert (copy.owner_id, copy.remaining) == ("host:1:x", 2.5)
    stale = pickle.loads(pickle.dumps(errors.StaleToken(token=3, current=7, resource="order:1")))
    assert (stale.token, stale.current, stale.resource) == (3, 7, "order:1")


def test_a_stale_token_says_both_tokens():
    assert str(errors.StaleToken(token=3, current=7)) == "fence token 3 is stale: the row carries 7"


def test_the_package_exports_what_it_says():
    functions = ("afenced_lock", "fenced_lock", "with_fenced_lock")
    exported = {name for name in vars(fenced_locks) if name[0].isupper() or name in functions}
    assert exported == set(fenced_locks.__all__)
