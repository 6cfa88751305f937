"""A lease that is left inside transactions is given back after the last of them has ended."""

import threading

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase

from fenced_locks import fenced_lock
from tests.app.models import Order
from tests.helpers import run_threads

pytestmark = pytest.mark.usefixtures("r")
real = pytest.mark.django_db(transaction=True, databases=["default", "postgres"])


class Failure(Exception):
    pass


@real
def test_on_commit(r):
    held_on_commit = []
    with transaction.atomic():
        transaction.on_commit(lambda: held_on_commit.append(r.exists("order:1")))
        with fenced_lock("order:1"):
            pass
        assert r.exists("order:1")
    assert held_on_commit == [1]
    assert not r.exists("order:1")


@real
def test_on_rollback_at_once(r):
    with pytest.raises(Failure), transaction.atomic():
        with fenced_lock("order:1"):
            pass
        assert r.exists("order:1")
        raise Failure
    assert not r.exists("order:1")


@real
def test_an_error_in_the_block_and_one_on_commit(r):
    with pytest.raises(Failure), transaction.atomic(), fenced_lock("order:1"):
        raise Failure
    assert not r.exists("order:1")

    def fail():
        raise Failure

    with pytest.raises(Failure), transaction.atomic():
        transaction.on_commit(fail)
        with fenced_lock("order:1"):
            pass
    assert not r.exists("order:1")


@real
def test_nested_blocks_wait_for_the_outermost(r):
    with transaction.atomic():
        with transaction.atomic(), fenced_lock("order:1"):
            pass
        assert r.exists("order:1")
        with transaction.atomic(durable=False), fenced_lock("order:2"):
            pass
    assert not r.exists("order:1", "order:2")
    with transaction.atomic(durable=True), fenced_lock("order:1"):
        pass
    assert not r.exists("order:1")


@real
def test_a_savepoint_that_rolls_back_does_not_end_the_wait(r):
    with transaction.atomic():
        with pytest.raises(Failure), transaction.atomic():
            with fenced_lock("order:1"):
                pass
            raise Failure
        assert r.exists("order:1")
    assert not r.exists("order:1")
    with pytest.raises(Failure), transaction.atomic():
        with pytest.raises(Failure), transaction.atomic(), fenced_lock("order:1"):
            raise Failure
        assert r.exists("order:1")
        raise Failure
    assert not r.exists("order:1")


@real
def test_several_databases_are_all_waited_for(r):
    with transaction.atomic(using="postgres"):
        with transaction.atomic():
            with fenced_lock("order:1"):
                pass
        assert r.exists("order:1")
    assert not r.exists("order:1")
    with transaction.atomic(using="postgres"):
        with pytest.raises(Failure), transaction.atomic():
            with fenced_lock("order:1"):
                pass
            raise Failure
        assert r.exists("order:1")
    assert not r.exists("order:1")


@real
def test_the_lease_that_waits_is_re_entered_in_that_transaction_only(r):
    def other_thread():
        return fenced_lock("order:1", blocking=False).acquire()

    with transaction.atomic():
        with fenced_lock("order:1") as lock:
            token = lock.fence_token
        assert lock.fence_token is None
        assert run_threads(other_thread) == [False]
        with fenced_lock("order:1") as again:
            assert again.fence_token == token
        assert r.exists("order:1")
    assert not r.exists("order:1")
    with fenced_lock("order:1") as lock:
        assert lock.fence_token > token


@real
def test_one_that_is_still_inside_when_the_transaction_ends_is_not_disturbed(r):
    inner = fenced_lock("order:1")
    with transaction.atomic():
        with fenced_lock("order:1"):
            pass
        inner.acquire()
    assert inner.owned()
    inner.release()
    assert not r.exists("order:1")


@real
def test_a_lock_around_the_transaction_is_released_by_its_own_exit(r):
    with fenced_lock("order:1"):
        with transaction.atomic(), fenced_lock("order:1"):
            pass
        assert r.exists("order:1")
    assert not r.exists("order:1")


@real
def test_a_release_that_fails_after_the_commit_is_logged(r, caplog):
    with transaction.atomic():
        with fenced_lock("order:1"):
            Order.objects.create()
        r.delete("order:1")
    assert Order.objects.count() == 1
    assert "what was to follow a transaction failed" in caplog.text
    assert "cannot release the lease of 'order:1'" in caplog.text


@real
def test_the_next_holder_reads_what_was_committed(r):
    order = Order.objects.using("postgres").create()

    def deposits():
        for _ in range(10):
            with transaction.atomic(using="postgres"), fenced_lock("deposit") as lock:
                amount = Order.objects.using("postgres").get(pk=order.pk).amount
                Order.objects.using("postgres").fenced_update(lock.fence_token, amount=amount + 10)

    run_threads(*[deposits] * 4)
    order.refresh_from_db()
    assert order.amount == 400


@real
def test_a_connection_that_is_closed_inside_leaves_the_lease_to_its_own_end(r):
    with pytest.raises(DatabaseError), transaction.atomic(using="postgres"):
        with fenced_lock("order:1", timeout=0.8):
            pass
        transaction.get_connection("postgres").close()
        Order.objects.using("postgres").count()
    with fenced_lock("order:1"):
        pass


@real
def test_with_autocommit_turned_off_it_is_refused(r):
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match="while autocommit is off"):
            fenced_lock("order:1").acquire()
    finally:
        transaction.set_autocommit(True)
    assert r.keys("*") == []


@pytest.mark.django_db
def test_the_transactions_of_a_test_case_delay_nothing(r, django_assert_num_queries):
    with django_assert_num_queries(0):
        with fenced_lock("order:1"):
            pass
        assert not r.exists("order:1")
    with transaction.atomic():
        with fenced_lock("order:1"):
            pass
        assert not r.exists("order:1")


class TestInDjangosTestCase(TestCase):
    def test_the_transactions_of_a_test_case_delay_nothing(self):
        assert connection.in_atomic_block
        with transaction.atomic(), fenced_lock("order:1"):
            pass
        thread = threading.Thread(target=lambda: taken.append(fenced_lock("order:1", blocking=False).acquire()))
        taken = []
        thread.start()
        thread.join()
        assert taken == [True]
