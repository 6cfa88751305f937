"""Several resources: all or none, in one order, before one deadline, each with its whole lease at entry."""

import asyncio
import contextvars
import itertools
import threading
import time
from datetime import timedelta

import pytest
import redis
from django.db import transaction

from fenced_locks import (
    FencedLock,
    IssuerError,
    LeaseLost,
    LockNotAcquired,
    NotHeld,
    OutcomeUnknown,
    afenced_lock,
    fenced_lock,
    nesting,
    signals,
)
from fenced_locks.locks import core
from fenced_locks.locks.loss import Loss
from fenced_locks.reentrant import ReentrantLock
from fenced_locks.several import ReentrantLocks
from tests.helpers import run_threads, wait_until
from tests.several import NAMES, Failing, Later, confirmed, held, is_release, is_renewal, keys_of, nothing_is_left

pytestmark = pytest.mark.usefixtures("r")
FIRST, SECOND, THIRD = NAMES


@pytest.fixture
def through(settings, proxy):
    """The proxy through which the cache alias ``cut`` reaches the server."""
    settings.CACHES = {**settings.CACHES, "cut": {**settings.CACHES["plain"], "LOCATION": proxy.url}}
    return proxy


@pytest.fixture
def other(r):
    """``other(name)`` has a resource taken by somebody else, in any thread."""

    def take(name, timeout=30):
        lock = FencedLock(r, name, timeout=timeout, thread_local=False)
        assert lock.acquire(blocking=False)
        return lock

    return take


class TestTokensAndNames:
    def test_every_resource_has_its_token(self, r):
        with fenced_lock(SECOND, FIRST) as locks:
            assert dict(locks.fence_tokens) == {name: int(r.get(f"fence:{{{name}}}")) for name in (FIRST, SECOND)}
            assert held(r) == 2
        assert nothing_is_left(r)

    def test_they_go_by_the_names_that_the_user_gave(self, settings, r):
        settings.FENCED_LOCKS = {"KEY_PREFIX": "shop:"}
        with fenced_lock("b", "a", "b") as locks:
            assert list(locks.fence_tokens) == ["b", "a"]
            assert locks.resources == ("b", "a")
            assert locks.fence_tokens["a"] == int(r.get("fence:{shop:a}"))
            with pytest.raises(KeyError, match=r"no fence token of 'shop:a' here; there are those of 'b', 'a'"):
                locks.fence_tokens["shop:a"]

    def test_they_are_live_and_can_be_read_anywhere_and_afterwards(self):
        with fenced_lock(FIRST, SECOND) as locks:
            tokens = locks.fence_tokens
            with fenced_lock(FIRST) as inner:
                token = inner.advance()
            assert tokens[FIRST] == locks.fence_tokens[FIRST] == token
            assert run_threads(lambda: tokens[FIRST]) == [token]
        assert tokens[FIRST] == token
        with pytest.raises(TypeError):
            tokens[FIRST] = 1
        assert repr(tokens) == repr(dict(tokens))

    def test_one_resource_has_them_too(self):
        with fenced_lock(FIRST) as lock:
            assert lock.fence_tokens == {FIRST: lock.fence_token}
        with pytest.raises(NotHeld, match="tokens"):
            _ = lock.fence_tokens

    @pytest.mark.parametrize("names", [(FIRST, SECOND), (FIRST, FIRST)])
    def test_there_is_no_single_token(self, names):
        with fenced_lock(*names) as locks:
            with pytest.raises(TypeError, match=r"no single fence token: .*use fence_tokens\['order:1'\]"):
                _ = locks.fence_token

    def test_one_name_is_the_lock_that_it_always_was_and_duplicates_collapse(self, through):
        assert isinstance(fenced_lock(FIRST), ReentrantLock)
        assert isinstance(fenced_lock(resource=FIRST), ReentrantLock)
        with fenced_lock(FIRST, FIRST, using="cut") as locks:
            assert isinstance(locks, ReentrantLocks)
            assert len(locks.fence_tokens) == 1
            # One that was just taken needs not be renewed.
            assert len(through.calls(("EVALSHA", "EVAL"))) <= 2
        assert len(through.calls(is_release)) == 1

    @pytest.mark.parametrize("bad", ["", "a}b", "fence:x", None, 7, ["order:2"]])
    def test_a_bad_name_is_refused_before_anything_is_sent(self, bad, r):
        with pytest.raises((ValueError, TypeError), match=r"resource|name of the lock"):
            fenced_lock(FIRST, bad)
        assert r.keys("*") == []

    def test_all_options_hold_for_each(self, r):
        seen = []
        options = {"timeout": 7, "issuer": "counter", "using": "plain"}
        with fenced_lock(FIRST, SECOND, **options) as locks:
            seen = [(r.get(f"fence:{{{name}}}"), 6_000 < r.pttl(name) <= 7_000) for name in (FIRST, SECOND)]
            assert 6 < locks.remaining() <= 7
        assert seen == [(b"1", True)] * 2
        with pytest.raises(ValueError, match="max_hold"):
            fenced_lock(FIRST, SECOND, max_hold=5)
        with pytest.raises(ValueError, match="blocking_timeout"):
            fenced_lock(FIRST, SECOND).acquire(blocking_timeout=-1)
        with fenced_lock(FIRST, SECOND, timeout=None) as locks:
            assert (r.pttl(FIRST), r.pttl(SECOND), locks.remaining()) == (-1, -1, None)
        assert nothing_is_left(r)


class TestOrder:
    @pytest.mark.parametrize("names", [*itertools.permutations(NAMES)])
    def test_they_are_taken_in_one_order_and_given_back_in_reverse(self, through, names):
        with fenced_lock("warm-up", using="cut"):
            pass
        through.forget()
        with fenced_lock(*names, using="cut"):
            taken = keys_of(through.calls("EVALSHA"))
            through.forget()
        assert taken == [*NAMES, *NAMES]
        assert keys_of(through.calls("EVALSHA")) == list(reversed(NAMES))

    def test_the_order_is_that_of_the_bytes(self, through):
        names = ["Z", "a", "é", "😀", "\uffff"]
        with fenced_lock(*names, using="cut"):
            taken = [command[3] for command in through.calls("EVALSHA")][: len(names)]
        assert taken == sorted(name.encode() for name in names)

    def test_when_the_last_is_held_all_are_renewed_in_one_round_trip(self, through, r):
        with fenced_lock(*NAMES, using="cut"):
            pass
        through.forget()
        answer = threading.Event()
        through.delay_reply(answer, is_renewal)

        def enter():
            with fenced_lock(*NAMES, using="cut"):
                return keys_of(through.calls("EVALSHA"))

        def watch():
            # The replies to all of them are outstanding.
            through.wait_for_request(is_renewal, count=3)
            answer.set()

        calls, _ = run_threads(enter, watch)
        assert calls == [*NAMES, *NAMES]


class TestAllOrNone:
    @pytest.mark.parametrize("at", NAMES)
    def test_busy(self, at, other, r):
        holder = other(at)
        with pytest.raises(LockNotAcquired) as failure:
            fenced_lock(*reversed(NAMES), blocking_timeout=0.05).__enter__()
        busy = failure.value
        assert (busy.resource, busy.owner_id) == (at, holder.owner_id)
        assert 25 < busy.remaining <= 30
        given_back = NAMES[: NAMES.index(at)]
        assert str(busy).startswith(f"'{at}' is busy: held by {holder.owner_id}")
        assert all(repr(name) in str(busy) for name in given_back)
        assert ("given back" in str(busy)) == bool(given_back)
        assert held(r) == 1
        assert fenced_lock(*NAMES).acquire(blocking=False) is False
        assert fenced_lock(*NAMES, blocking=False).acquire() is False
        assert fenced_lock(*NAMES).acquire(blocking_timeout=0) is False
        assert held(r) == 1
        holder.release()
        assert nothing_is_left(r)

    @pytest.mark.parametrize("at", NAMES)
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
    def test_an_interruption_or_an_issuer_that_fails(self, at, error, r):
        def fail():
            assert held(r) == NAMES.index(at) + 1
            raise error

        locks = fenced_lock(*NAMES, issuer=Failing(at, fail))
        with pytest.raises(IssuerError if error is ValueError else error):
            locks.__enter__()
        assert nothing_is_left(r)
        with pytest.raises(NotHeld):
            locks.release()

    @pytest.mark.parametrize("at", NAMES)
    def test_a_counter_that_cannot_be_used(self, at, r):
        r.lpush(f"fence:{{{at}}}", "x")
        with pytest.raises(IssuerError, match=at):
            fenced_lock(*NAMES).acquire()
        assert nothing_is_left(r)

    @pytest.mark.parametrize("at", range(6))
    def test_a_reply_that_is_lost(self, at, through, r):
        """At each of the three acquires, and at each reply to their renewal, until the deadline."""
        with fenced_lock("warm-up", using="cut"):
            pass
        through.forget()
        seen = itertools.count()

        def is_meant(command):
            return command[0] == b"EVALSHA" and not is_release(command) and next(seen) >= at

        through.drop_reply(is_meant, times=100)
        with pytest.raises(OutcomeUnknown):
            fenced_lock(*NAMES, using="cut", blocking_timeout=0.6).acquire()
        assert next(seen) > at + 1
        assert nothing_is_left(r)

    def test_a_lost_reply_is_no_failure_while_there_is_time(self, through, r):
        through.drop_reply(is_renewal)
        with fenced_lock(*NAMES, using="cut", timeout=5) as locks:
            assert len(locks.fence_tokens) == held(r) == 3
        assert nothing_is_left(r)

    def test_the_first_error_wins_over_those_of_giving_back(self, through, monkeypatch, r, caplog):
        monkeypatch.setattr(core, "RETRY_SECONDS", 0.05)

        def fail():
            through.refuse()
            through.disconnect()
            raise ZeroDivisionError

        locks = fenced_lock(*NAMES, using="cut", issuer=Failing(THIRD, fail), blocking_timeout=0)
        with pytest.raises(IssuerError, match="ZeroDivisionError"):
            locks.acquire()
        assert caplog.text.count("could not be given back") == 2
        through.admit()
        # What could not be given back can be, later.
        locks.release()
        r.delete(THIRD)
        assert nothing_is_left(r)


@pytest.mark.django_db(transaction=True)
class TestInTransactions:
    def test_all_are_given_back_after_the_commit(self, r):
        seen = []
        with transaction.atomic():
            with fenced_lock(*NAMES) as locks:
                tokens = dict(locks.fence_tokens)
            assert held(r) == 3
            with pytest.raises(NotHeld):
                _ = locks.fence_tokens
            # Until then they can be entered again.
            with fenced_lock(*NAMES) as locks:
                assert locks.fence_tokens == tokens
            with fenced_lock(SECOND) as lock:
                assert lock.fence_token == tokens[SECOND]
            transaction.on_commit(lambda: seen.append(held(r)))
        assert seen == [0]
        assert nothing_is_left(r)

    def test_all_are_given_back_on_rollback(self, r):
        with pytest.raises(ZeroDivisionError), transaction.atomic(), fenced_lock(*NAMES):
            raise ZeroDivisionError
        assert nothing_is_left(r)

    def test_a_release_that_fails_then_is_logged_and_the_others_follow(self, r, caplog):
        with transaction.atomic():
            with fenced_lock(*NAMES):
                pass
            r.delete(SECOND)
        assert caplog.text.count("what was to follow a transaction failed") == 1
        assert nothing_is_left(r)

    def test_what_was_taken_in_vain_is_given_back_at_once(self, other, r):
        with transaction.atomic():
            other(THIRD)
            assert not fenced_lock(*NAMES).acquire(blocking=False)
            assert held(r) == 1
            with fenced_lock(SECOND):
                pass
            assert not fenced_lock(*NAMES).acquire(blocking=False)
            # Our own, for which the transaction waits.
            assert r.exists(SECOND)
        assert held(r) == 1

    def test_with_autocommit_turned_off_it_is_refused(self, r):
        transaction.set_autocommit(False)
        try:
            with pytest.raises(transaction.TransactionManagementError, match="while autocommit is off"):
                fenced_lock(*NAMES).acquire()
        finally:
            transaction.set_autocommit(True)
        assert r.keys("*") == []


class TestDeadline:
    def test_it_is_one_for_all(self, other):
        first, _ = other(FIRST), other(SECOND)
        started = time.monotonic()
        with Later(0.8, first.release), pytest.raises(LockNotAcquired, match="'stock:x' is busy"):
            fenced_lock(*NAMES, blocking_timeout=1.8).__enter__()
        assert 1.8 <= time.monotonic() - started < 2.5

    def test_without_one_it_waits_for_ever(self, other):
        second = other(SECOND)
        with Later(0.3, second.release), fenced_lock(*NAMES, blocking_timeout=None) as locks:
            assert locks.ensure_held() == locks.fence_tokens

    def test_that_of_the_call_counts(self, other):
        other(SECOND)
        started = time.monotonic()
        assert not fenced_lock(FIRST, SECOND, blocking_timeout=60).acquire(blocking_timeout=timedelta(seconds=0.1))
        assert time.monotonic() - started < 5


class TestLeasesWhileOthersAreAwaited:
    @pytest.mark.parametrize("renew", [False, True])
    def test_a_lease_of_one_second_outlasts_the_wait_and_is_whole_at_entry(self, other, through, renew, r):
        last = other(THIRD)
        with Later(1.5, last.release), fenced_lock(*NAMES, timeout=1, renew=renew, using="cut") as locks:
            assert held(r) == 3
            assert 0 < locks.remaining() <= 1
            assert confirmed(through.calls()) == [(name, 1000) for name in NAMES]
            # The same leases all the time, and not others that were taken anew.
            firsts = [command for command in through.calls("EVALSHA") if command[2] == b"4"]
            assert keys_of(firsts)[:2] == [FIRST, SECOND]
            assert keys_of(firsts).count(FIRST) == keys_of(firsts).count(SECOND) == 1
        assert nothing_is_left(r)

    def test_they_are_kept_no_longer_than_that(self, other, r):
        last = other(SECOND)
        locks = fenced_lock(FIRST, SECOND, timeout=0.8, raise_on_release_error=False)
        with Later(0.6, last.release), locks:
            entered = time.monotonic()
            assert locks.lost.wait(5)
            assert 0.2 < time.monotonic() - entered < 2
            wait_until(lambda: not held(r), 1)

    def test_nor_after_a_failure(self, other, r):
        other(SECOND)
        with fenced_lock(FIRST, timeout=0.9, raise_on_release_error=False) as outer:
            assert not fenced_lock(FIRST, SECOND, timeout=0.9, blocking_timeout=1).acquire()
            assert outer.lost.wait(5)

    def test_what_they_may_be_renewed_for_counts_from_when_all_are_held(self, other):
        last = other(SECOND)
        options = {"timeout": 0.8, "renew": True, "max_hold": 1.5, "raise_on_release_error": False}
        with Later(1.2, last.release), fenced_lock(FIRST, SECOND, **options) as locks:
            entered = time.monotonic()
            assert locks.lost.wait(5)
            assert 0.9 < time.monotonic() - entered < 3

    def test_what_ended_meanwhile_is_taken_anew(self, other, r):
        last = other(SECOND)

        def lose():
            r.set(FIRST, "somebody", px=200)
            last.release()

        waited = []
        with Later(0.2, lose), fenced_lock(FIRST, SECOND, blocking_timeout=5) as locks:
            waited.append(locks.ensure_held() == locks.fence_tokens)
        assert waited == [True]
        assert nothing_is_left(r)

    def test_or_refused_by_name_when_the_wait_is_over(self, other, r):
        last = other(SECOND)

        def lose():
            r.set(FIRST, "somebody", px=60_000)
            last.release()

        with Later(0.2, lose), pytest.raises(LockNotAcquired, match="'order:1' is busy: held by somebody"):
            fenced_lock(FIRST, SECOND, blocking_timeout=1).__enter__()
        assert (r.get(FIRST), r.exists(SECOND)) == (b"somebody", 0)

    def test_one_that_does_not_wait_says_which_has_ended(self, r):
        issuer = Failing(SECOND, lambda: r.set(FIRST, "somebody", px=60_000))
        with pytest.raises(LockNotAcquired, match=r"'order:1' was taken, but the lease ended .*'stock:x' was") as lost:
            fenced_lock(FIRST, SECOND, blocking=False, issuer=issuer).__enter__()
        assert (lost.value.resource, lost.value.owner_id) == (FIRST, "somebody")
        assert 50 < lost.value.remaining <= 60
        assert (r.get(FIRST), r.exists(SECOND)) == (b"somebody", 0)

    def test_nor_is_one_the_only_one_that_was_taken_a_riddle(self, through, r):
        with fenced_lock(SECOND, using="cut"):
            gone = threading.Event()
            through.delay_request(gone, is_renewal)

            def lose():
                through.wait_for_request(is_renewal)
                r.delete(FIRST)
                gone.set()

            loser = threading.Thread(target=lose)
            loser.start()
            with pytest.raises(
                LockNotAcquired, match=r"'order:1' was taken, but the lease ended .*; the wait is over$"
            ):
                fenced_lock(FIRST, SECOND, using="cut", blocking=False).__enter__()
            loser.join()

    def test_a_lease_that_is_over_when_the_renewal_is_answered_is_none(self, through, r):
        with fenced_lock(FIRST, SECOND, using="cut"):
            pass
        through.delay_reply(0.9, is_renewal)
        with fenced_lock(FIRST, SECOND, using="cut", timeout=0.8) as locks:
            assert locks.remaining() > 0
        assert len(through.calls(is_renewal)) >= 6


class TestReentry:
    def test_what_is_held_is_entered_and_stays_with_the_outer_lock(self, r):
        with fenced_lock(SECOND) as outer:
            with fenced_lock(*NAMES) as locks:
                assert locks.fence_tokens[SECOND] == outer.fence_token
                with fenced_lock(THIRD, FIRST) as inner:
                    assert inner.fence_tokens == {name: locks.fence_tokens[name] for name in (THIRD, FIRST)}
                with fenced_lock(THIRD) as one:
                    assert one.fence_token == locks.fence_tokens[THIRD]
                assert held(r) == 3
            assert outer.ensure_held() == outer.fence_token
            assert held(r) == 1
        assert nothing_is_left(r)

    def test_one_object_may_be_entered_twice(self, r):
        locks = fenced_lock(*NAMES)
        with locks, locks:
            tokens = dict(locks.fence_tokens)
            assert len(tokens) == 3
        assert nothing_is_left(r)
        with locks:
            assert all(locks.fence_tokens[name] > tokens[name] for name in NAMES)

    @pytest.mark.parametrize("outer", NAMES)
    def test_a_failure_leaves_the_outer_lock_alone(self, outer, other, r):
        with fenced_lock(outer) as lock:
            busy = other(next(name for name in reversed(NAMES) if name != outer))
            assert not fenced_lock(*NAMES).acquire(blocking_timeout=0.05)
            assert lock.ensure_held() == lock.fence_token
            busy.release()
            assert held(r) == 1
        assert nothing_is_left(r)

    def test_a_failure_takes_back_no_more_entries_than_it_made(self, r):
        with pytest.raises(LeaseLost), fenced_lock(*NAMES) as locks:
            r.delete(SECOND)
            for _ in range(2):
                with pytest.raises(LeaseLost):
                    locks.ensure_held()
                with pytest.raises(LeaseLost, match="cannot re-enter the lease of 'stock:x'"):
                    locks.acquire()
                assert held(r) == 2
        assert nothing_is_left(r)

    def test_a_lease_that_has_ended_is_not_entered_and_nothing_is_taken(self, r):
        with fenced_lock(SECOND, timeout=0.001, raise_on_release_error=False) as outer:
            wait_until(lambda: outer.lost.is_set())
            with pytest.raises(LeaseLost, match="cannot re-enter the lease of 'stock:x'"):
                fenced_lock(*NAMES).acquire()
        assert nothing_is_left(r)

    def test_it_is_kept_while_others_are_awaited_and_whole_at_entry(self, other, through, r):
        last = other(THIRD)
        with fenced_lock(FIRST, timeout=1, using="cut") as outer:
            with Later(1.5, last.release), fenced_lock(*NAMES, using="cut"):
                assert 0 < r.pttl(FIRST) <= 1000
                assert 0 < outer.remaining() <= 1
                assert confirmed(through.calls()) == [(FIRST, 1000), (SECOND, 30_000), (THIRD, 30_000)]

    def test_that_it_is_renewed_no_more_holds_for_others_too(self, r):
        with fenced_lock(FIRST, timeout=1.5, renew=True, max_hold=1.6, raise_on_release_error=False) as outer:
            # Renewal would not let it come to that before it has reached its limit.
            wait_until(lambda: outer.remaining() < 0.9)
            with fenced_lock(FIRST, SECOND):
                assert outer.remaining() < 1.2

    def test_one_that_is_lost_while_others_are_awaited(self, other, r):
        last, lost = other(THIRD), []

        def lose():
            r.delete(FIRST)
            last.release()

        def note(sender, resource, **details):
            lost.append(resource)

        signals.lease_lost.connect(note)
        with pytest.raises(LeaseLost, match="'order:1'"), fenced_lock(FIRST):
            with Later(0.2, lose), pytest.raises(LeaseLost, match=r"cannot re-enter .*while others were awaited"):
                fenced_lock(*NAMES).acquire()
            assert not held(r)
        signals.lease_lost.disconnect(note)
        assert lost == [FIRST]

    def test_another_thread_is_another_holder(self):
        locks = fenced_lock(*NAMES)

        def use():
            assert locks.acquire(blocking_timeout=10)
            tokens = dict(locks.fence_tokens)
            locks.release()
            return tokens

        def misuse():
            for use_of in (locks.release, locks.remaining, locks.ensure_held):
                with pytest.raises(NotHeld):
                    use_of()
            for name in ("lost", "fence_tokens"):
                with pytest.raises(NotHeld):
                    getattr(locks, name)
            return locks.acquire(blocking=False)

        with locks:
            assert run_threads(misuse) == [False]
        first, second = run_threads(use, use)
        assert all(first[name] != second[name] for name in NAMES)


class TestLeaving:
    @pytest.mark.parametrize("at", NAMES)
    def test_all_are_given_back_also_if_one_was_lost(self, at, r, caplog):
        with pytest.raises(LeaseLost, match=at), fenced_lock(*NAMES):
            r.delete(at)
        assert nothing_is_left(r)
        with fenced_lock(*NAMES, raise_on_release_error=False):
            r.delete(at)
        assert f"release of '{at}' failed on leaving its block" in caplog.text
        assert nothing_is_left(r)

    def test_the_first_error_is_raised_and_the_others_are_logged(self, r, caplog):
        locks = fenced_lock(*NAMES)
        assert locks.acquire()
        r.delete(SECOND, THIRD)
        with pytest.raises(LeaseLost, match=THIRD):
            locks.release()
        assert f"another one was not given back: cannot release the lease of '{SECOND}'" in caplog.text
        assert nothing_is_left(r)
        with pytest.raises(NotHeld):
            locks.release()

    def test_an_error_of_the_block_wins(self, r):
        with pytest.raises(ZeroDivisionError), fenced_lock(*NAMES):
            r.delete(SECOND)
            raise ZeroDivisionError
        assert nothing_is_left(r)

    def test_an_interruption_wins_and_all_are_given_back(self, r):
        locks = fenced_lock(*NAMES)
        locks.acquire()
        r.delete(THIRD)

        def interrupt(resource, **details):
            if resource == SECOND:
                raise KeyboardInterrupt

        signals.lease_released.connect(interrupt)
        with pytest.raises(KeyboardInterrupt):
            locks.release()
        signals.lease_released.disconnect(interrupt)
        assert nothing_is_left(r)

    def test_a_release_that_the_server_did_not_answer_can_be_repeated(self, through, monkeypatch, r):
        monkeypatch.setattr(core, "RETRY_SECONDS", 0.05)
        locks = fenced_lock(*NAMES, using="cut")
        assert locks.acquire()

        def is_second(command):
            return is_release(command) and command[3] == SECOND.encode()

        through.drop_request(is_second, times=100)
        with pytest.raises(redis.exceptions.ConnectionError):
            locks.release()
        assert held(r) == 1
        through._script.clear()
        locks.release()
        assert nothing_is_left(r)


class TestWhileHeld:
    def test_ensure_held_asks_for_all_in_one_round_trip(self, through):
        with fenced_lock(*NAMES, using="cut") as locks:
            locks.ensure_held()
            through.forget()
            answer = threading.Event()
            through.delay_reply(answer)

            def watch():
                through.wait_for_request(count=3)
                answer.set()

            watcher = threading.Thread(target=watch)
            watcher.start()
            assert locks.ensure_held() == locks.fence_tokens
            watcher.join()
            assert keys_of(through.calls("EVALSHA")) == list(NAMES)

    def test_a_server_that_cannot_be_asked_is_a_clear_error(self, through, monkeypatch):
        monkeypatch.setattr(core, "RETRY_SECONDS", 0.1)
        with fenced_lock(*NAMES, using="cut") as locks:
            through.drop_reply(times=100)
            with pytest.raises(OutcomeUnknown, match="check of 'order:1' was sent"):
                locks.ensure_held()
            through._script.clear()
            through.drop_reply()
            assert locks.ensure_held() == locks.fence_tokens

    @pytest.mark.parametrize("at", NAMES)
    def test_the_loss_of_any_is_found(self, at, r):
        with pytest.raises(LeaseLost), fenced_lock(*NAMES) as locks:
            lost = locks.lost
            assert not lost.wait(0.01)
            r.set(at, "somebody", px=60_000)
            with pytest.raises(LeaseLost, match=f"cannot rely on the lease of '{at}'.* held by somebody"):
                locks.ensure_held()
            assert lost.is_set()
            assert locks.remaining() == 0
            # Found without asking, now.
            r.delete(at)
            with pytest.raises(LeaseLost, match="it has ended"):
                locks.ensure_held()

    def test_who_waits_for_a_loss_is_woken_when_all_are_given_back(self, monkeypatch):
        first, second = fenced_lock(FIRST), fenced_lock(SECOND)
        told, looks, earliest = [], [], core.earliest
        monkeypatch.setattr(core, "earliest", lambda *times: looks.append(times) or earliest(*times))
        with first:
            second.acquire()
            lost = Loss(first._held("watch"), second._held("watch"))
            watcher = threading.Thread(target=lambda: told.append(lost.wait(20)))
            watcher.start()
            wait_until(lambda: all(vars(lease).get("_told") for lease in lost._leases))
            second.release()
            # That decides nothing, and does not let it look all the time.
            assert not lost.wait(0.3)
            assert len(looks) < 10
        watcher.join(5)
        assert told == [False]
        assert not any(vars(lease)["_told"] for lease in lost._leases)

    def test_remaining_is_that_of_the_first_to_end(self):
        with fenced_lock(SECOND, timeout=2), fenced_lock(*NAMES, timeout=5) as locks:
            assert 1 < locks.remaining() <= 2

    def test_signals_tell_of_each_lease(self):
        told = []

        def note(signal, resource, **details):
            told.append((signal, resource))

        names = ("lease_acquired", "lease_released", "lease_lost", "lease_renewed")
        for name in names:
            getattr(signals, name).connect(note)
        with fenced_lock(*NAMES):
            pass
        for name in names:
            getattr(signals, name).disconnect(note)
        taken, given_back = signals.lease_acquired, signals.lease_released
        assert told == [*[(taken, name) for name in NAMES], *[(given_back, name) for name in reversed(NAMES)]]


class TestNestingAgainstTheOrder:
    @pytest.fixture(autouse=True)
    def _nothing_reported(self, monkeypatch):
        monkeypatch.setattr(nesting, "_reported", set())

    @pytest.fixture
    def reports(self, caplog):
        return lambda: [record.getMessage() for record in caplog.records if record.name == "fenced_locks.nesting"]

    @pytest.mark.parametrize("names", [(FIRST,), (FIRST, "aisle:2"), (THIRD, FIRST)])
    def test_it_is_logged_with_both_names_and_what_is_held_and_taken_all_the_same(self, names, reports):
        with fenced_lock("mine:1"), fenced_lock(SECOND), fenced_lock(*names) as lock:
            assert lock.ensure_held()
        first = [text for text in reports() if f"'{FIRST}' is asked for by one who holds '{SECOND}'" in text]
        assert len(first) == 1
        assert first[0].endswith("(held, in this order: 'mine:1', 'stock:x')") or "aisle:2" in names

    def test_several_count_as_taken_before(self, reports):
        with fenced_lock(SECOND, THIRD), fenced_lock(FIRST):
            pass
        assert len(reports()) == 2
        assert all("(held, in this order: 'stock:x', 'zone:9')" in text for text in reports())

    def test_once_for_names_of_one_kind(self, reports):
        for number in range(5):
            with fenced_lock(f"stock:{number}"), fenced_lock(f"order:{number}"):
                pass
        assert len(reports()) == 1

    @pytest.mark.parametrize("inner", [(THIRD,), (SECOND, THIRD), (SECOND,)])
    def test_what_is_in_order_or_entered_again_is_not_reported(self, inner, reports):
        with fenced_lock(FIRST), fenced_lock(SECOND):
            with fenced_lock(*inner), fenced_lock(FIRST):
                pass
        with fenced_lock(THIRD):
            pass
        with fenced_lock(FIRST):
            pass
        assert reports() == []

    @pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0}])
    def test_who_does_not_wait_cannot_wait_for_each_other(self, options, reports):
        with fenced_lock(SECOND), fenced_lock(FIRST, **options), fenced_lock("aisle:1", "bin:1", **options):
            pass
        assert reports() == []

    def test_the_names_are_those_that_the_user_gave(self, settings, reports):
        settings.FENCED_LOCKS = {"KEY_PREFIX": "shop:"}
        for outer, inner in (("zone", "stock"), ("stock", "order"), ("zone", "order")):
            with fenced_lock(outer), fenced_lock(inner):
                pass
        assert [text.partition(":")[0] for text in reports()] == [
            "'stock' is asked for by one who holds 'zone'",
            "'order' is asked for by one who holds 'stock'",
            "'order' is asked for by one who holds 'zone'",
        ]

    def test_what_another_thread_or_task_holds_is_not_ours(self, reports):
        async def child():
            return await afenced_lock("aisle:1").acquire()

        async def work():
            async with afenced_lock(SECOND):
                assert await asyncio.create_task(child())

        with fenced_lock(SECOND):
            # A thread of a pool may have a copy of the context.
            context = contextvars.copy_context()
            assert run_threads(lambda: context.run(fenced_lock(FIRST).acquire)) == [True]
        asyncio.run(work())
        assert reports() == []

    def test_an_async_lock_counts_as_well(self, reports):
        async def work():
            async with afenced_lock(SECOND), afenced_lock(FIRST):
                with fenced_lock("aisle:1"):
                    pass

        asyncio.run(work())
        assert len(reports()) == 3

    @pytest.mark.django_db(transaction=True)
    def test_a_lease_that_awaits_the_end_of_its_transaction_is_held(self, reports):
        with transaction.atomic():
            with fenced_lock(SECOND):
                pass
            with fenced_lock(FIRST):
                pass
        assert len(reports()) == 1
