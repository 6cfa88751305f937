"""Law 3 and law 5: no orphan leases, and deadlines that hold, when replies are lost, late or never come."""

import gc
import os
import threading
import time
import weakref

import pytest
import redis

from fenced_locks import FencedLock, IssuerError, LeaseLost, OutcomeUnknown
from fenced_locks.wire import connecting
from tests.helpers import run_threads, wait_until

SCRIPT = ("EVALSHA", "EVAL")


@pytest.fixture
def client(proxy, client_factory):
    client = client_factory(proxy.url)
    # Connected, with the scripts loaded: the faults are meant for what follows.
    with FencedLock(client, "warm-up", timeout=10) as lock:
        lock.extend(1)
    return client


def test_an_acquire_whose_reply_is_lost_knows_its_own_lease_and_mints_a_new_token(proxy, client, r):
    proxy.drop_reply(SCRIPT)
    lock = FencedLock(client, "order:1", timeout=10, blocking_timeout=2)
    assert lock.acquire()
    assert lock.owned()
    assert int(r.get("fence:{order:1}")) == lock.fence_token
    lock.release()
    assert not r.exists("order:1")


@pytest.mark.parametrize("after", [1, 4, 12])
def test_an_acquire_whose_reply_is_cut_short_does_the_same(proxy, client, r, after):
    proxy.cut_reply(SCRIPT, after=after)
    lock = FencedLock(client, "order:1", timeout=10, blocking_timeout=2)
    assert lock.acquire()
    assert r.get("order:1") == lock.owner_id.encode()


def test_several_lost_replies_in_a_row(proxy, client, r):
    proxy.drop_reply(SCRIPT, times=4)
    lock = FencedLock(client, "order:1", timeout=10, blocking_timeout=5)
    assert lock.acquire()
    assert r.get("order:1") == lock.owner_id.encode()


def test_without_waiting_a_lost_reply_is_repaired_too(proxy, client, r):
    proxy.drop_reply(SCRIPT)
    lock = FencedLock(client, "order:1", timeout=10)
    assert lock.acquire(blocking=False)
    assert r.get("order:1") == lock.owner_id.encode()


def test_two_leases_are_never_told_from_one_by_a_token_that_was_passed(proxy, client, r):
    """The other copy of a task holds the lock under the same owner id while our first reply is lost."""
    other = FencedLock(r, "order:1", timeout=10)
    assert other.acquire(token="task-1")
    proxy.drop_reply(SCRIPT)
    assert FencedLock(client, "order:1", timeout=10, blocking_timeout=0.3).acquire(token="task-1") is False
    assert other.owned()


@pytest.mark.parametrize("which", [1, 2])
def test_a_token_that_was_passed_is_stored_whichever_reply_is_lost(proxy, client, r, which):
    seen = iter(range(1, 10))
    proxy.drop_reply(lambda command: command[0] in (b"EVALSHA", b"EVAL") and next(seen) == which)
    lock = FencedLock(client, "order:1", timeout=10, blocking_timeout=2)
    assert lock.acquire(token="task-1")
    assert r.get("order:1") == b"task-1"


@pytest.fixture
def after_a_late_attempt(proxy, r, client_factory):
    """A lock whose first attempt is still on its way while the second one holds; and what lets it arrive."""
    client = client_factory(proxy.url, socket_timeout=0.6)
    with FencedLock(client, "warm-up", timeout=10):
        pass
    late = threading.Event()
    proxy.delay_request(late, SCRIPT)
    lock = FencedLock(client, "order:1", timeout=60, blocking_timeout=3)
    assert lock.acquire()

    def undone():
        return r.info("commandstats").get("cmdstat_eval", {}).get("calls", 0)

    def let_it_arrive():
        before = undone()
        late.set()
        # The undo is the only script that is sent whole here; it comes behind the attempt.
        wait_until(lambda: undone() > before, 5)

    return lock, let_it_arrive


def test_an_attempt_that_is_carried_out_after_its_time_is_undone_behind_itself(after_a_late_attempt, r):
    lock, let_it_arrive = after_a_late_attempt
    lock.release()
    token = int(r.get("fence:{order:1}"))
    let_it_arrive()
    assert int(r.get("fence:{order:1}")) > token
    assert not r.exists("order:1")


def test_the_undo_of_a_late_attempt_never_touches_the_lease_of_a_later_one(after_a_late_attempt):
    lock, let_it_arrive = after_a_late_attempt
    let_it_arrive()
    assert lock.owned()
    lock.release()


def test_an_acquire_that_gives_up_after_lost_replies_says_so_and_leaves_no_lease(proxy, client, r):
    proxy.drop_reply("EVALSHA", times=1000)
    lock = FencedLock(client, "order:1", timeout=60, blocking_timeout=0.4)
    with pytest.raises(OutcomeUnknown, match="acquire of 'order:1' was sent and its reply was lost"):
        lock.acquire()
    assert lock.fence_token is None
    assert not r.exists("order:1")


def test_a_release_whose_reply_is_lost_has_released(proxy, client, r):
    lock = FencedLock(client, "order:1", timeout=10)
    lock.acquire()
    proxy.drop_reply(SCRIPT)
    lock.release()
    assert not r.exists("order:1")
    assert lock.fence_token is None


def test_a_lease_found_gone_after_its_end_is_lost_even_then(proxy, client, r):
    lock = FencedLock(client, "order:1", timeout=0.05)
    lock.acquire()
    wait_until(lambda: not r.exists("order:1"), 2)
    proxy.drop_reply(SCRIPT)
    with pytest.raises(LeaseLost):
        lock.release()


def test_a_release_that_failed_for_want_of_a_server_can_be_repeated(proxy, client, r):
    lock = FencedLock(client, "order:1", timeout=60)
    lock.acquire()
    proxy.refuse()
    proxy.disconnect()
    with pytest.raises(redis.exceptions.ConnectionError):
        lock.release()
    assert lock.fence_token is not None
    proxy.admit()
    lock.release()
    assert not r.exists("order:1")


def test_a_release_whose_outcome_stays_unknown_can_be_repeated(proxy, client, r):
    lock = FencedLock(client, "order:1", timeout=60)
    lock.acquire()
    cut = threading.Event()
    cut.set()
    proxy.drop_request(lambda command: cut.is_set(), times=1000)
    with pytest.raises(OutcomeUnknown, match="release of 'order:1'"):
        lock.release()
    cut.clear()
    assert lock.owned()
    lock.release()
    assert not r.exists("order:1")


@pytest.mark.parametrize("replace", [False, True])
def test_an_extend_whose_reply_is_lost_extends_once(proxy, client, r, replace):
    lock = FencedLock(client, "order:1", timeout=10)
    lock.acquire()
    proxy.drop_reply(SCRIPT, times=2)
    assert lock.extend(10, replace_ttl=replace)
    longest = 10_000 if replace else 20_000
    assert longest - 1_500 < r.pttl("order:1") <= longest


def test_a_mute_server_ends_an_acquire_at_its_deadline(proxy, client):
    proxy.mute()
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        FencedLock(client, "order:1", timeout=60, blocking_timeout=1).acquire()
    assert time.monotonic() - started < 4


def test_a_server_that_is_mute_from_the_first_connection_does_too(proxy, client_factory):
    proxy.mute()
    started = time.monotonic()
    with pytest.raises(redis.exceptions.TimeoutError):
        FencedLock(client_factory(proxy.url), "order:1", timeout=60, blocking_timeout=1).acquire()
    assert time.monotonic() - started < 4


def test_what_a_mute_server_took_is_undone_when_it_speaks_again(proxy, client, r):
    proxy.mute()
    with pytest.raises(OutcomeUnknown):
        FencedLock(client, "order:1", timeout=None, blocking_timeout=0.5).acquire()
    proxy.unmute()
    wait_until(lambda: r.exists("fence:{order:1}") and not r.exists("order:1"), 5)


def test_a_server_that_is_down_is_never_taken_for_a_busy_lock(own_server, client_factory):
    server = own_server()
    client = client_factory(server.url)
    server.kill()
    for options in ({"blocking_timeout": 0.2}, {"blocking": False}):
        with pytest.raises(redis.exceptions.ConnectionError):
            FencedLock(client, "order:1", timeout=10, **options).acquire()


def test_a_server_that_is_back_before_the_deadline_is_waited_for(proxy, client):
    proxy.refuse()
    proxy.disconnect()

    def back_again():
        wait_until(lambda: proxy.refused)
        proxy.admit()

    lock = FencedLock(client, "order:1", timeout=10, blocking_timeout=5)
    granted, _ = run_threads(lock.acquire, back_again)
    assert granted


def test_an_emptied_pool_keeps_nobody_from_releasing(client_factory, r):
    for pool in (redis.ConnectionPool, redis.BlockingConnectionPool):
        client = client_factory(pool=pool, max_connections=1)
        lock = FencedLock(client, "order:1", timeout=10)
        lock.acquire()
        with client.pubsub() as listener:
            listener.subscribe("takes the only connection of the pool")
            lock.release()
    assert not r.exists("order:1")


def test_more_threads_than_connections_wait_for_one_until_their_deadline(client_factory, r):
    client = client_factory(max_connections=2, client_name="small")

    def cycle(number):
        with FencedLock(client, f"order:{number}", timeout=10, blocking_timeout=10) as lock:
            return lock.fence_token

    assert all(run_threads(*[lambda number=number: cycle(number) for number in range(10)]))
    assert 1 <= len([entry for entry in r.client_list() if entry["name"] == "small"]) <= 2


def test_wrong_credentials_are_not_tried_again(own_server, client_factory):
    server = own_server("--requirepass", "secret")
    started = time.monotonic()
    with pytest.raises(redis.exceptions.AuthenticationError):
        FencedLock(client_factory(f"redis://:wrong@127.0.0.1:{server.port}/0"), "order:1").acquire()
    assert time.monotonic() - started < 2


def test_a_lease_of_a_lost_attempt_is_undone_when_a_later_one_is_refused(proxy, client, r):
    with FencedLock(client, "warm-up", issuer="counter"):
        r.set("fence:{order:1}", 2**53 - 2)
    proxy.drop_reply(SCRIPT)
    with pytest.raises(IssuerError, match="no lease was left behind"):
        FencedLock(client, "order:1", issuer="counter", blocking_timeout=2).acquire()
    assert not r.exists("order:1")


def test_storing_a_token_that_was_passed_keeps_to_the_deadline_and_leaves_nothing(proxy, client, r):
    seen = iter(range(1, 1000))
    proxy.drop_reply(lambda command: command[0] in (b"EVALSHA", b"EVAL") and next(seen) > 1, times=1000)
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        FencedLock(client, "order:1", blocking_timeout=0.3).acquire(token="task-1")
    assert time.monotonic() - started < 2
    assert not r.exists("order:1")


def test_a_lease_that_went_before_the_token_was_stored_is_not_taken_for_ours(proxy, client, r):
    """The other copy of the task takes the lock, under the same owner id, between our two calls."""
    other = FencedLock(r, "order:1", timeout=10, thread_local=False)

    def between(command):
        if command[0] == b"EVALSHA" and command[-2] == b"task-1" and not other.fence_token:
            r.delete("order:1")
            assert other.acquire(token="task-1")
        return False

    proxy.drop_reply(between)
    assert FencedLock(client, "order:1", blocking_timeout=0.3).acquire(token="task-1") is False
    assert other.owned()


class Interruption(BaseException):
    pass


def test_an_interruption_while_trying_again_leaves_no_lease(proxy, client, r, monkeypatch):
    def interrupt(seconds):
        raise Interruption

    proxy.drop_reply(SCRIPT)
    monkeypatch.setattr("fenced_locks.locks.blocking.time.sleep", interrupt)
    with pytest.raises(Interruption):
        FencedLock(client, "order:1").acquire()
    assert not r.exists("order:1")


def test_credentials_that_are_refused_after_a_lost_attempt_leave_no_lease(proxy, client, r, monkeypatch):
    proxy.drop_reply(SCRIPT)
    refused = [redis.exceptions.AuthenticationError("wrong password")]
    connect = connecting.connect

    def refused_once(connection, seconds):
        if refused:
            raise refused.pop()
        connect(connection, seconds)

    monkeypatch.setattr(connecting, "connect", refused_once)
    with pytest.raises(redis.exceptions.AuthenticationError):
        FencedLock(client, "order:1").acquire()
    assert not r.exists("order:1")


def test_a_connection_whose_setup_was_interrupted_is_not_used(redis_url, client_factory, r, monkeypatch):
    """Half made, it would still be in database 0."""
    client = client_factory(redis_url.rsplit("/", 1)[0] + "/5")
    pool = client.connection_pool
    interrupted = iter([Interruption()])
    send = pool.connection_class.send_command

    def send_command(self, *args, **kwargs):
        if args[0] == "SELECT":
            for error in interrupted:
                raise error
        return send(self, *args, **kwargs)

    monkeypatch.setattr(pool.connection_class, "send_command", send_command)
    lock = FencedLock(client, "order:1", timeout=10)
    with pytest.raises(Interruption):
        lock.acquire()
    with lock:
        assert client.exists("order:1")
        assert not r.exists("order:1")
    client.flushdb()


def test_a_pool_is_collected_with_its_connections(redis_url, r):
    before = len(r.client_list())

    def use_and_forget():
        client = redis.Redis.from_url(redis_url)
        with FencedLock(client, "order:1", timeout=10):
            pass
        client.close()
        return weakref.ref(client.connection_pool)

    for _ in range(5):
        pool = use_and_forget()
        gc.collect()
        assert pool() is None
    wait_until(lambda: len(r.client_list()) <= before)


def test_an_interruption_between_two_connections_loses_no_slot(client_factory, monkeypatch):
    client = client_factory(max_connections=1)
    monkeypatch.setattr("fenced_locks.wire.lines.ready", lambda *args: (_ for _ in ()).throw(Interruption))
    with pytest.raises(Interruption):
        FencedLock(client, "order:1").acquire()
    monkeypatch.undo()
    with FencedLock(client, "order:1", timeout=10, blocking_timeout=1):
        pass


def test_threads_of_a_forked_child_share_its_connections(client_factory, r):
    client = client_factory(max_connections=1)
    with FencedLock(client, "order:0", timeout=10):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                cycles = [lambda n=n: FencedLock(client, f"order:{n}", timeout=10).acquire() for n in range(1, 9)]
                os.write(writing, repr(run_threads(*cycles)).encode())
            except BaseException as error:  # noqa: BLE001 - it is shown by the parent
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 1000) == repr([True] * 8).encode()
    client.close()


def test_asking_whether_it_is_locked_ends_on_a_mute_server_too(proxy, client):
    proxy.mute()
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        FencedLock(client, "order:1").locked()
    assert time.monotonic() - started < 8


def test_a_connection_that_the_server_closed_while_idle_costs_no_certainty(client_factory, r, monkeypatch):
    """Taken for an attempt whose reply was lost, the release of a lost lease would count as done."""
    monkeypatch.setattr(connecting, "FRESH_SECONDS", 0.0)
    client = client_factory(client_name="idle")
    lock = FencedLock(client, "order:1", timeout=60)
    lock.acquire()
    r.delete("order:1")
    for entry in r.client_list():
        if entry["name"] == "idle":
            r.client_kill_filter(_id=entry["id"])
    with pytest.raises(LeaseLost):
        lock.release()
