"""``FencedLock`` as redis-py's lock, its known faults mended, and as the source of tokens."""

import threading
import time
from datetime import timedelta

import pytest
import redis
import redis.asyncio
from redis.lock import Lock

from fenced_locks import AsyncFencedLock, FencedLock, IssuerError, LeaseHasNoEnd, LeaseLost, LockNotAcquired, NotHeld
from tests.helpers import run_threads, wait_until


def test_a_lease_has_a_token_and_an_owner_and_none_after_release(any_client):
    lock = FencedLock(any_client, "order:1", timeout=10)
    assert (lock.fence_token, lock.owner_id) == (None, None)
    assert lock.acquire()
    assert lock.fence_token > 1_700_000_000_000_000
    host, pid, random = lock.owner_id.rsplit(":", 2)
    assert host
    assert pid.isdigit()
    assert len(random) == 24
    assert lock.owned()
    assert lock.locked()
    lock.release()
    assert (lock.fence_token, lock.owner_id) == (None, None)
    assert not lock.locked()


def test_everything_works_with_every_kind_of_client(any_client):
    lock = FencedLock(any_client, "order:1", timeout=10, issuer="counter")
    with lock:
        assert lock.fence_token == 1
        assert FencedLock(any_client, "order:1").acquire(blocking=False) is False
        assert lock.extend(10) is True
        assert 15_000 < any_client.pttl("order:1") <= 20_000
        assert lock.reacquire() is True
        assert any_client.pttl("order:1") <= 10_000
    with lock:
        assert lock.fence_token == 2


def test_the_stored_value_is_the_owner_id_and_excludes_plain_locks_both_ways(r):
    plain, fenced = Lock(r, "order:1", timeout=10), FencedLock(r, "order:1", timeout=10)
    with fenced:
        assert r.get("order:1") == fenced.owner_id.encode()
        assert plain.acquire(blocking=False) is False
    with plain:
        assert fenced.acquire(blocking=False) is False


def test_a_plain_lock_made_first_lends_no_scripts(r):
    class Renamed(FencedLock):
        LUA_RELEASE_SCRIPT = "return redis.call('del', KEYS[1]) + 41"

    Lock(r, "order:1", timeout=10)
    lock = Renamed(r, "order:2", timeout=10)
    lock.acquire()
    assert lock.lua_release(keys=["order:2"], client=r) == 42


def test_an_override_that_was_written_for_redis_pys_lock_works(r):
    class Releasing(FencedLock):
        def do_release(self, expected_token):
            assert self.lua_release(keys=[self.name], args=[expected_token], client=self.redis)

    with Releasing(r, "order:1", timeout=10):
        pass
    assert not r.exists("order:1")


@pytest.mark.parametrize("timeout", [0, -1, 0.0, timedelta(0), float("nan"), "10", True])
def test_a_bad_timeout_is_refused_at_once_and_nothing_is_sent(r, timeout):
    with pytest.raises((ValueError, TypeError), match="timeout"):
        FencedLock(r, "order:1", timeout=timeout)
    assert r.keys("*") == []


def test_less_than_a_millisecond_is_one_millisecond(r):
    lock = FencedLock(r, "order:1", timeout=0.0001)
    assert lock.acquire()
    wait_until(lambda: not r.exists("order:1"), 2)


@pytest.mark.parametrize("additional", [0, -1, "1", None])
def test_extend_by_nothing_is_refused_and_leaves_the_lease_alone(r, additional):
    with FencedLock(r, "order:1", timeout=10) as lock:
        for replace in (False, True):
            with pytest.raises((ValueError, TypeError), match="additional_time"):
                lock.extend(additional, replace_ttl=replace)
        assert lock.owned()


def test_a_lease_without_end_cannot_be_extended(r):
    with FencedLock(r, "order:1") as lock:
        assert r.pttl("order:1") == -1
        with pytest.raises(LeaseHasNoEnd):
            lock.extend(1)
        with pytest.raises(LeaseHasNoEnd):
            lock.reacquire()


def test_extend_adds_to_the_end_and_replaces_on_request(r):
    with FencedLock(r, "order:1", timeout=10) as lock:
        lock.extend(timedelta(seconds=5))
        assert 10_000 < r.pttl("order:1") <= 15_000
        lock.extend(3, replace_ttl=True)
        assert 0 < r.pttl("order:1") <= 3_000
        lock.extend(2)
        assert 3_000 < r.pttl("order:1") <= 5_000


def test_a_lock_freed_before_the_deadline_is_not_missed_by_a_long_sleep(r):
    holder = FencedLock(r, "order:1", timeout=0.02)
    assert holder.acquire()
    waiter = FencedLock(r, "order:1", timeout=10, sleep=5, blocking_timeout=0.2)
    started = time.monotonic()
    assert waiter.acquire()
    assert time.monotonic() - started < 2
    waiter.release()


def test_a_busy_lock_raises_on_entering_and_says_who_holds_it(r):
    holder = FencedLock(r, "order:1", timeout=10)
    with holder:
        with pytest.raises(LockNotAcquired, match=r"'order:1' is busy: held by .*this very process.* s left") as caught:
            with FencedLock(r, "order:1", timeout=10, blocking_timeout=0.05):
                pytest.fail("the body must not run")
        error = caught.value
        assert (error.resource, error.lock_name, error.owner_id) == ("order:1", "order:1", holder.owner_id)
        assert 9 < error.remaining <= 10


def test_the_owner_of_a_plain_lock_may_be_any_bytes(any_client):
    any_client.execute_command("SET", "order:1", b"\xff\xfe", "PX", 10_000)
    with pytest.raises(LockNotAcquired) as caught:
        FencedLock(any_client, "order:1", blocking=False).__enter__()
    assert caught.value.owner_id == "\\xff\\xfe"


def test_a_key_of_another_type_is_busy_and_is_left_alone(r):
    r.rpush("order:1", "x")
    lock = FencedLock(r, "order:1", timeout=10)
    assert lock.acquire(blocking=False) is False
    assert r.lrange("order:1", 0, -1) == [b"x"]
    assert r.keys("*") == [b"order:1"]


def test_the_error_of_the_body_wins_over_the_one_of_the_exit(r, caplog):
    with pytest.raises(ZeroDivisionError), FencedLock(r, "order:1", timeout=10):
        r.delete("order:1")
        _ = 1 / 0
    assert "release of 'order:1' failed" in caplog.text


def test_a_lost_lease_raises_on_leaving_unless_asked_not_to(r, caplog):
    with pytest.raises(LeaseLost, match="it ended, the resource is free") as caught:
        with FencedLock(r, "order:1", timeout=10) as lock:
            token = lock.fence_token
            r.delete("order:1")
    assert caught.value.fence_token == token
    with FencedLock(r, "order:1", timeout=10, raise_on_release_error=False) as lock:
        r.set("order:1", "somebody")
    assert "held by somebody" in caplog.text
    assert r.get("order:1") == b"somebody"
    assert lock.fence_token is None


def test_only_the_owner_releases_extends_and_reacquires(r):
    lock = FencedLock(r, "order:1", timeout=10)
    lock.acquire()
    r.set("order:1", "somebody", px=5_000)
    for action in (lambda: lock.extend(60), lock.reacquire, lock.release):
        with pytest.raises(LeaseLost, match="held by somebody"):
            action()
    assert r.get("order:1") == b"somebody"
    assert r.pttl("order:1") <= 5_000


def test_renewing_never_acquires(r):
    lock = FencedLock(r, "order:1", timeout=10)
    lock.acquire()
    r.delete("order:1")
    for action in (lambda: lock.extend(60), lambda: lock.extend(60, replace_ttl=True), lock.reacquire):
        with pytest.raises(LeaseLost):
            action()
    assert not r.exists("order:1")


def test_another_thread_gets_a_clear_error_and_touches_nothing(r):
    lock = FencedLock(r, "order:1", timeout=10)
    lock.acquire()

    def other_thread():
        assert (lock.fence_token, lock.owner_id) == (None, None)
        for action in (lock.owned, lock.release, lock.reacquire, lambda: lock.extend(1)):
            with pytest.raises(NotHeld, match="in this thread"):
                action()

    run_threads(other_thread)
    assert lock.owned()
    lock.release()


def test_each_thread_has_its_own_lease_of_one_object(r):
    lock = FencedLock(r, "order:1", timeout=10)

    def cycle():
        with lock:
            return lock.fence_token

    tokens = run_threads(*[cycle] * 8)
    assert len(set(tokens)) == 8


def test_without_thread_local_a_lease_is_handed_to_another_thread(r):
    lock = FencedLock(r, "order:1", timeout=10, thread_local=False)
    lock.acquire()
    run_threads(lambda: (lock.owned(), lock.extend(1), lock.release()))
    assert not r.exists("order:1")


def test_a_token_that_is_passed_is_stored_and_is_busy_for_every_other_lock(r):
    lock, copy = FencedLock(r, "order:1", timeout=10), FencedLock(r, "order:1", timeout=10)
    assert lock.acquire(token="task-1")
    assert r.get("order:1") == b"task-1" == lock.local.token
    assert 9_000 < r.pttl("order:1") <= 10_000
    assert lock.owner_id == "task-1"
    assert copy.acquire(token="task-1", blocking=False) is False
    lock.release()


@pytest.mark.parametrize("token", ["", b""])
def test_an_empty_owner_id_is_refused(r, token):
    with pytest.raises(ValueError, match="token must not be empty"):
        FencedLock(r, "order:1").acquire(token=token)
    assert r.keys("*") == []


@pytest.mark.parametrize("name", ["", "fence:x", "a}b", "{x}"])
def test_a_bad_name_is_refused_when_the_lock_is_made(r, name):
    with pytest.raises(ValueError, match="name of the lock"):
        FencedLock(r, name)


def test_a_name_may_be_bytes(r):
    with FencedLock(r, b"order:1", timeout=10):
        assert sorted(r.keys("*")) == [b"fence:{order:1}", b"order:1"]


def test_redis_py_builds_it_by_its_lock_method(r):
    with r.lock("order:1", timeout=10, lock_class=FencedLock) as lock:
        assert lock.fence_token


def test_overrides_of_the_extension_points_are_honoured(r):
    seen = []

    class Counting(FencedLock):
        def do_acquire(self, token):
            seen.append("acquire")
            return super().do_acquire(token)

        def do_release(self, expected_token):
            seen.append("release")
            super().do_release(expected_token)

        def do_extend(self, additional_time, replace_ttl):
            seen.append("extend")
            return super().do_extend(additional_time, replace_ttl)

    with Counting(r, "order:1", timeout=10) as lock:
        lock.extend(1)
    assert seen == ["acquire", "extend", "release"]


def test_an_override_that_issues_no_token_is_an_error_and_leaves_no_lease(r):
    class Tokenless(FencedLock):
        def do_acquire(self, token):
            return bool(self.redis.set(self.name, token, nx=True, px=10_000))

    with pytest.raises(IssuerError, match="without a fence token"):
        Tokenless(r, "order:1", timeout=10).acquire()
    assert not r.exists("order:1")


def test_a_released_lock_is_not_held(r):
    lock = FencedLock(r, "order:1", timeout=10)
    for action in (lock.release, lambda: lock.extend(1), lock.reacquire):
        with pytest.raises(NotHeld):
            action()
    assert lock.owned() is False


def test_scripts_that_the_server_forgot_are_sent_whole(any_client):
    lock = FencedLock(any_client, "order:1", timeout=10)
    for action in (lock.acquire, lambda: lock.extend(1), lock.owned, lock.release):
        any_client.script_flush()
        action()
    assert not any_client.exists("order:1")


def test_a_full_server_refuses_leases_and_still_takes_releases(own_server, client_factory):
    client = client_factory(own_server().url)
    lock = FencedLock(client, "order:1", timeout=60)
    lock.acquire()
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        FencedLock(client, "order:2", timeout=60).acquire()
    lock.release()
    client.config_set("maxmemory", 0)
    assert client.keys("order:*") == []


def test_ten_thousand_cycles_leave_only_the_counter(r):
    for _ in range(10_000):
        with FencedLock(r, "order:1", timeout=10):
            pass
    assert r.keys("*") == [b"fence:{order:1}"]


def test_one_holder_at_a_time_and_tokens_in_the_order_of_grants(r):
    inside, tokens, guard = [], [], threading.Lock()

    def worker():
        for _ in range(20):
            with FencedLock(r, "order:1", timeout=10, sleep=0.001) as lock:
                inside.append(1)
                assert len(inside) == 1
                with guard:
                    tokens.append(lock.fence_token)
                inside.pop()

    run_threads(*[worker] * 8)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 160


def test_one_object_without_thread_local_may_be_used_by_several_threads(r):
    lock = FencedLock(r, "order:1", timeout=10, sleep=0.001, thread_local=False)

    def cycle():
        for _ in range(10):
            assert lock.acquire()
            lock.release()

    run_threads(*[cycle] * 3)


@pytest.mark.parametrize("name", [1001, None, 1.5])
def test_a_name_that_is_neither_text_nor_bytes_is_refused(r, name):
    with pytest.raises(TypeError, match="name of the lock must be a string or bytes"):
        FencedLock(r, name)


def test_a_name_of_any_bytes_is_the_key_that_a_plain_lock_uses(r):
    with FencedLock(r, b"\xff\xfe", timeout=10):
        assert Lock(r, b"\xff\xfe", timeout=10).acquire(blocking=False) is False


def test_a_name_that_the_client_would_encode_otherwise_is_refused(client_factory):
    client = client_factory(encoding="latin-1")
    with pytest.raises(ValueError, match="ASCII or bytes"):
        FencedLock(client, "caf\u00e9")


def test_a_subclass_that_refuses_by_itself_raises_the_usual_error(r):
    class Never(FencedLock):
        def acquire(self, *args, **kwargs):
            return False

    with pytest.raises(LockNotAcquired, match="unknown owner"):
        Never(r, "order:1").__enter__()


@pytest.mark.parametrize("additional", [9 * 10**12, 10**400])
def test_an_end_beyond_exact_numbers_is_refused(r, additional):
    with FencedLock(r, "order:1", timeout=10) as lock:
        with pytest.raises(ValueError, match="additional_time"):
            for _ in range(3):
                lock.extend(additional)
        lock.extend(10, replace_ttl=True)


def test_errors_name_the_resource(own_server, client_factory):
    server = own_server()
    lock = FencedLock(client_factory(server.url), "order:1", timeout=10, blocking_timeout=0.1)
    server.kill()
    with pytest.raises(redis.exceptions.ConnectionError, match="acquire of 'order:1' was not sent"):
        lock.acquire()


@pytest.mark.parametrize("client", [None, "redis://localhost"])
def test_what_is_no_client_is_refused_by_its_value(client):
    with pytest.raises(TypeError, match=rf"needs a client that blocks, of redis-py, not {client!r}$"):
        FencedLock(client, "order:1")
    with pytest.raises(TypeError, match=r"needs a client of redis\.asyncio, not "):
        AsyncFencedLock(client, "order:1")


def test_an_asyncio_client_is_refused_when_the_lock_is_made(redis_url):
    with pytest.raises(TypeError, match="needs a client that blocks"):
        FencedLock(redis.asyncio.Redis.from_url(redis_url), "order:1")
