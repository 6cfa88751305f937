"""``fenced_locks.testing``, on a real server and on ``fakeredis``."""

import asyncio
import threading
import time

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from fenced_locks import (
    FencedLock,
    LeaseLost,
    LockNotAcquired,
    afenced_lock,
    fenced_lock,
    signals,
    with_fenced_lock,
)
from fenced_locks.conf import conf
from fenced_locks.connections import get_client
from fenced_locks.locks.renewal import renewer
from fenced_locks.testing import (
    assert_held,
    expire,
    hold,
    isolated_locks,
    lock_name,
    move_clock,
)
from tests.app.models import Order
from tests.fakes import fake_caches
from tests.helpers import run_threads, wait_until
from tests.waiters import at_the_gate


@pytest.fixture(params=["redis", "fakeredis"], autouse=True)
def client(request, r, settings):
    """A client of the server that keeps the locks."""
    if request.param == "fakeredis":
        settings.CACHES = fake_caches()
    return get_client()


@pytest.fixture
def isolated():
    with isolated_locks():
        yield


class TestIsolation:
    def test_names_are_the_tests_own_and_nothing_is_left(self, client):
        client.set("order:1", "of somebody")
        with isolated_locks():
            with fenced_lock("order:1", blocking=False) as lock:
                assert lock.name == lock_name("order:1") != "order:1"
                assert assert_held("order:1") == lock.fence_token
            with fenced_lock("{7}:x"), fenced_lock("order:{7}:x"):
                pass
            assert len(client.keys("fence:*")) == 3
            with isolated_locks(), fenced_lock("order:1", blocking=False):
                pass
        assert lock_name("order:1") == "order:1"
        assert client.keys("*") == [b"order:1"]

    def test_the_prefix_stays_before_that_of_the_settings_however_late_they_are_changed(self, settings, client):
        settings.FENCED_LOCKS = {"KEY_PREFIX": "shop:"}
        with isolated_locks():
            outer = lock_name("order:1")
            assert outer.endswith(":shop:order:1")
            with override_settings(FENCED_LOCKS={"TIMEOUT": 7}), fenced_lock("order:1") as lock:
                assert lock.name == outer.replace("shop:", "")
            settings.FENCED_LOCKS = {"KEY_PREFIX": "other:"}
            with fenced_lock("order:1"):
                pass
        assert client.keys("*") == []
        assert conf.KEY_PREFIX == "other:"

    @pytest.mark.parametrize("renew", [False, True])
    def test_what_is_still_held_is_forgotten_without_a_word(self, client, renew):
        lost = []

        def receive(**details):
            lost.append(details)

        signals.lease_lost.connect(receive)
        try:
            with isolated_locks():
                lock = fenced_lock("order:1", timeout=3, renew=renew)
                lock.acquire()
                event = lock.lost
            assert client.keys("*") == []
            assert event.wait(1.2) is False
            assert lost == []
            with isolated_locks(), fenced_lock("order:1", blocking=False):
                pass
        finally:
            signals.lease_lost.disconnect(receive)

    def test_a_lease_of_somebody_else_is_kept(self, client):
        with FencedLock(client, "order:1", timeout=10) as lock:
            with isolated_locks(), fenced_lock("order:1"):
                pass
            assert lock.owned()

    def test_every_alias_that_was_used_is_cleaned_up(self, settings):
        settings.CACHES = {**settings.CACHES, "elsewhere": fake_caches()["plain"], "named": fake_caches()["default"]}
        named = []
        with isolated_locks(using=["named"]):
            fenced_lock("order:1", using="elsewhere").acquire()
            threading.Thread(target=lambda: fenced_lock("order:1", using="named").acquire()).start()
            wait_until(lambda: get_client("named").keys("*"))
            named += get_client("named").keys("*")
        assert len(named) == 2
        assert get_client("elsewhere").keys("*") == get_client("named").keys("*") == []

    def test_nothing_is_sent_where_no_lock_is_used(self, settings):
        settings.CACHES = {
            "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": {}}
        }
        began = time.monotonic()
        with isolated_locks():
            pass
        assert time.monotonic() - began < 2

    def test_an_alias_that_cannot_keep_locks_is_refused_before_the_block(self):
        with pytest.raises(ImproperlyConfigured, match="'elsewhere'"), isolated_locks(using=["elsewhere"]):
            pytest.fail("must not run")
        assert lock_name("order:1") == "order:1"

    def test_an_error_of_the_block_is_raised_and_the_prefix_goes(self, client):
        with pytest.raises(KeyError), isolated_locks():
            fenced_lock("order:1").acquire()
            raise KeyError("x")
        assert lock_name("order:1") == "order:1"
        assert client.keys("*") == []

    def test_two_blocks_at_once_do_not_meet(self):
        # As two workers would run them, but for the settings, which threads share.
        assert len({self._name() for _ in range(100)}) == 100

    def _name(self):
        with isolated_locks():
            return lock_name("order:1")


@pytest.mark.usefixtures("isolated")
class TestHold:
    def test_the_resource_is_busy_for_everybody_and_free_afterwards(self, client):
        def busy():
            with pytest.raises(LockNotAcquired, match="held by somebody-else") as caught:
                fenced_lock("order:1", blocking=False).__enter__()
            return caught.value

        with hold("order:1", timeout=20) as token:
            assert 19 < busy().remaining <= 20
            assert run_threads(busy)[0].owner_id.startswith("somebody-else:")
            with pytest.raises(AssertionError, match="not held by this thread"):
                assert_held("order:1")
        with fenced_lock("order:1", blocking=False) as lock:
            assert lock.fence_token > token

    def test_a_view_says_423(self):
        @with_fenced_lock("order:<id>", blocking_timeout=0)
        def view(request, id):
            return HttpResponse("done")

        request = RequestFactory().get("/")
        with hold("order:1", timeout=10):
            response = view(request, 1)
            assert (response.status_code, response["Retry-After"]) == (423, "10")
            assert view(request, 2).status_code == 200
        assert view(request, 1).status_code == 200

    def test_code_that_awaits_finds_it_busy(self):
        async def main():
            with hold("order:1"):
                assert await afenced_lock("order:1", blocking=False).acquire() is False
            async with afenced_lock("order:1", blocking=False):
                with pytest.raises(LockNotAcquired, match="order:1"):
                    with hold("order:1"):
                        pytest.fail("held twice")

        async_to_sync(main)()

    def test_a_waiter_gets_it_when_the_block_ends(self):
        held, waiting = threading.Event(), threading.Event()

        def wait():
            held.wait(10)
            waiting.set()
            with fenced_lock("order:1", blocking_timeout=10) as lock:
                return lock.fence_token

        def somebody():
            with hold("order:1") as token:
                held.set()
                waiting.wait(10)
            return token

        with hold("order:2"):
            newer, older = run_threads(wait, somebody)
        assert newer > older

    @pytest.mark.django_db
    def test_its_token_is_stale_once_the_code_has_written(self):
        Order.objects.create(pk=1)
        with hold("order:1") as stale:
            expire("order:1")
            with fenced_lock("order:1", blocking=False) as lock:
                assert Order.objects.filter(pk=1).fenced_update(lock.fence_token, status="paid") == 1
            assert Order.objects.filter(pk=1).fenced_update(stale, status="late") == 0

    def test_no_signal_tells_of_what_somebody_else_does(self):
        told = []

        def receive(signal, **details):
            told.append(signal)

        ours = [signals.lease_acquired, signals.lease_released, signals.lease_lost]
        for signal in ours:
            signal.connect(receive)
        try:
            with hold("order:1"):
                pass
            with hold("order:1"):
                expire("order:1")
                with fenced_lock("order:1"):
                    pass
        finally:
            for signal in ours:
                signal.disconnect(receive)
        assert told == [signals.lease_acquired, signals.lease_released]

    def test_a_lease_without_end(self, client):
        with hold("order:1", timeout=None):
            assert client.pttl(lock_name("order:1")) == -1

    def test_a_bad_argument_is_refused(self, client):
        for bad in ("", None, 7):
            with pytest.raises((TypeError, ValueError), match="resource"):
                hold(bad).__enter__()
        with pytest.raises(ValueError, match="timeout"):
            hold("order:1", timeout=0).__enter__()
        assert client.keys("*") == []


@pytest.mark.usefixtures("isolated")
class TestExpire:
    def test_the_lease_is_over_for_its_holder_and_at_the_server(self, client):
        with pytest.raises(LeaseLost):
            with fenced_lock("order:1") as lock:
                lost = lock.lost
                assert not lost.is_set()
                expire("order:1")
                assert lost.is_set()
                assert lock.remaining() == 0
                assert not client.exists(lock_name("order:1"))
                with pytest.raises(AssertionError):
                    assert_held("order:1")
                with pytest.raises(LeaseLost):
                    lock.ensure_held()
        with fenced_lock("order:1", blocking=False):
            pass

    def test_a_lease_without_end_ends_too(self):
        with pytest.raises(LeaseLost), fenced_lock("order:1", timeout=None) as lock:
            expire("order:1")
            assert lock.lost.is_set()
            assert lock.remaining() == 0

    def test_a_renewal_ends_at_once_and_says_so(self, client):
        heard = threading.Event()

        def receive(resource, **details):
            assert resource.endswith("order:1")
            heard.set()

        signals.lease_lost.connect(receive)
        try:
            lock = fenced_lock("order:1", timeout=30, renew=True, raise_on_release_error=False)
            with lock:
                expire("order:1")
                assert heard.is_set()
                assert lock.lost.is_set()
            assert client.keys("*order:1") == []
        finally:
            signals.lease_lost.disconnect(receive)

    def test_the_next_lease_is_renewed_all_the_same(self):
        with fenced_lock("order:1", timeout=30, renew=True, raise_on_release_error=False):
            # Until a third of that has passed.
            wait_until(lambda: renewer._changed._waiters)
            expire("order:1")
            with fenced_lock("order:2", timeout=1, renew=True) as lock:
                assert not lock.lost.wait(1.5)

    def test_the_lease_of_another_thread_ends(self):
        held, ended = threading.Event(), threading.Event()

        def holder():
            with pytest.raises(LeaseLost), fenced_lock("order:1", timeout=60) as lock:
                lost = lock.lost
                held.set()
                assert lost.wait(10)
                assert ended.wait(10)
                assert lock.remaining() == 0

        def other():
            held.wait(10)
            expire("order:1")
            ended.set()

        run_threads(holder, other)

    def test_the_lease_of_a_task_ends(self):
        async def main():
            with pytest.raises(LeaseLost):
                async with afenced_lock("order:1", renew=True) as lock:
                    waiting = asyncio.ensure_future(lock.lost.wait())
                    await asyncio.sleep(0)
                    expire("order:1")
                    assert await waiting
                    assert lock.remaining() == 0
            with pytest.raises(LeaseLost):
                async with afenced_lock("order:2", renew=True) as lock:
                    await sync_to_async(expire)("order:2")
                    assert lock.lost.is_set()

        async_to_sync(main)()

    def test_that_of_a_plain_lock_of_another_program_ends(self, client):
        client.set(lock_name("order:1"), "another program", px=60_000)
        expire("order:1")
        assert not client.exists(lock_name("order:1"))

    def test_nothing_to_end_is_an_error(self):
        with pytest.raises(AssertionError, match="'order:1' cannot be ended: nobody holds it"):
            expire("order:1")


@pytest.mark.usefixtures("isolated")
class TestAssertHeld:
    def test_it_returns_the_token_of_the_lease(self):
        with fenced_lock("order:1") as lock, fenced_lock("order:1"):
            assert assert_held("order:1") == assert_held("order:1", using="plain") == lock.fence_token
        with pytest.raises(AssertionError, match="'order:1' is not held"):
            assert_held("order:1")

    def test_the_decorator_holds(self):
        @with_fenced_lock("order:<pk>")
        def pay(pk, fence_token):
            return assert_held(f"order:{pk}") == fence_token

        assert pay(1)

    def test_a_task_holds_and_its_children_do_not(self):
        async def child():
            with pytest.raises(AssertionError):
                assert_held("order:1")

        async def main():
            async with afenced_lock("order:1") as lock:
                assert assert_held("order:1") == lock.fence_token
                await asyncio.create_task(child())
                await sync_to_async(self._is_not_held)()

        async_to_sync(main)()

    def test_another_thread_does_not_hold(self):
        with fenced_lock("order:1"):
            run_threads(self._is_not_held)

    def _is_not_held(self):
        with pytest.raises(AssertionError):
            assert_held("order:1")

    def test_a_lease_that_has_ended_is_not_held(self):
        with pytest.raises(LeaseLost), fenced_lock("order:1", timeout=10):
            move_clock(10)
            with pytest.raises(AssertionError):
                assert_held("order:1")

    def test_the_class_does_not_count(self, client):
        with FencedLock(client, lock_name("order:1"), timeout=10):
            with pytest.raises(AssertionError):
                assert_held("order:1")


@pytest.mark.usefixtures("isolated")
class TestMoveClock:
    def test_a_lease_gets_shorter_here_and_at_the_server(self, client):
        with fenced_lock("order:1", timeout=30) as lock:
            move_clock(20)
            assert 5 < lock.remaining() <= 10
            assert 5_000 < client.pttl(lock_name("order:1")) <= 10_000
            lock.extend(5)
            assert 10 < lock.remaining() <= 15
            assert 10_000 < client.pttl(lock_name("order:1")) <= 15_000

    def test_a_lease_that_was_shorter_is_over(self, client):
        with pytest.raises(LeaseLost):
            with fenced_lock("order:1", timeout=30) as lock:
                token = lock.fence_token
                move_clock(25)
                assert not lock.lost.is_set()
                move_clock(5)
                assert lock.lost.is_set()
                assert lock.remaining() == 0
                with pytest.raises(AssertionError):
                    expire("order:1")
        with fenced_lock("order:1", blocking=False) as lock:
            assert lock.fence_token > token

    def test_the_lease_of_somebody_else_ends_and_a_waiter_gets_it(self):
        def wait():
            with fenced_lock("order:1", blocking_timeout=60):
                return True

        def move():
            wait_until(at_the_gate)
            move_clock(30)

        with hold("order:1", timeout=30):
            assert run_threads(wait, move)[0]

    def test_a_wait_is_over_when_its_time_has_passed(self):
        def wait():
            return fenced_lock("order:1", blocking_timeout=600).acquire()

        def move():
            wait_until(at_the_gate)
            move_clock(600)

        with hold("order:1", timeout=None):
            assert run_threads(wait, move)[0] is False

    def test_a_renewed_lease_is_renewed_if_there_is_time_and_lost_if_not(self):
        lock = fenced_lock("order:1", timeout=30, renew=True, raise_on_release_error=False)
        with lock:
            move_clock(25)
            wait_until(lambda: lock.remaining() > 29)
            lost = lock.lost
            move_clock(31)
            assert lost.is_set()
            wait_until(lambda: lock._lease.lost)

    def test_tasks_are_told(self):
        async def main():
            lock = afenced_lock("order:1", timeout=30, renew=True, raise_on_release_error=False)
            async with lock:
                lease = lock._lease
                ends = lease.ends_at
                move_clock(25)
                await sync_to_async(wait_until, thread_sensitive=False)(lambda: lease.ends_at > ends)
                move_clock(31)
                assert await asyncio.wait_for(lock.lost.wait(), 10)

        async_to_sync(main)()

    def test_the_clock_goes_back_afterwards_and_others_are_left_alone(self, client):
        with FencedLock(client, "order:1", timeout=30) as other:
            with isolated_locks():
                move_clock(3600)
                assert client.pttl("order:1") > 25_000
            assert 25 < other.remaining() <= 30

    def test_it_is_refused_outside_and_for_what_is_no_time(self):
        for bad in (0, -1, None, "x"):
            with pytest.raises((TypeError, ValueError), match="seconds"):
                move_clock(bad)


def test_a_clock_outside_an_isolated_block_is_not_moved():
    with pytest.raises(RuntimeError, match="FencedLocksTestMixin"):
        move_clock(1)


@pytest.mark.django_db
def test_a_release_is_not_delayed_under_the_fixture_db(isolated, client):
    with transaction.atomic(), fenced_lock("order:1"):
        pass
    assert not client.exists(lock_name("order:1"))


@pytest.mark.django_db(transaction=True)
def test_a_release_waits_for_the_commit_under_transactional_db(isolated, client):
    with transaction.atomic():
        with fenced_lock("order:1"):
            pass
        assert client.exists(lock_name("order:1"))
    assert not client.exists(lock_name("order:1"))
