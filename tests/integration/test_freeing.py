"""A forced release takes a lease from the owner that was named, from nobody else, and his writes are refused."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
import redis
from django.db import InterfaceError, connection, transaction

from fenced_locks import FencedLock, LeaseLost
from fenced_locks.freeing import free
from fenced_locks.issuers import ClockIssuer, CounterIssuer, DatabaseIssuer
from fenced_locks.registered import Registered, registered_models
from fenced_locks.resources import Reader
from tests.app.models import Customer, Order, SpecialOrder, Stock
from tests.helpers import run_threads, wait_until

pytestmark = pytest.mark.django_db

CLOCK = ClockIssuer()


@pytest.fixture
def models(settings):
    settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>", "app.Stock": "stock:<shop>:<sku>"}}


@pytest.fixture
def held(r):
    lock = FencedLock(r, "order:1", timeout=30, thread_local=False)
    assert lock.acquire()
    return lock


def free_from(client, lock, issuer=CLOCK):
    return free(client, lock.name.encode(), lock.owner_id.encode(), issuer)


class TestTheLock:
    def test_the_lease_ends_at_once_and_its_holder_can_do_nothing_with_it(self, any_client, held, r):
        token = held.fence_token
        freed = free_from(any_client, held)
        assert (freed.freed, freed.problem) == (True, "")
        assert freed.token > token
        assert not r.exists("order:1")
        # The counter is kept, and the next token is greater.
        assert int(r.get("fence:{order:1}")) == freed.token
        with pytest.raises(LeaseLost):
            held.ensure_held()
        with pytest.raises(LeaseLost):
            held.release()
        with FencedLock(r, "order:1", timeout=30) as later:
            assert later.fence_token > freed.token

    def test_renewal_finds_out_and_does_not_take_it_back(self, r):
        lock = FencedLock(r, "order:1", timeout=1.5, renew=True)
        lock.acquire()
        lost = lock.lost
        free_from(r, lock)
        assert lost.wait(5)
        assert not r.exists("order:1")

    def test_another_owner_than_the_one_that_was_shown_loses_nothing(self, any_client, held, r):
        before = r.get("order:1"), r.get("fence:{order:1}")
        freed = free(any_client, b"order:1", b"web:1:0123456789abcdef01234567", CLOCK)
        assert not freed.freed
        assert held.owner_id in freed.problem
        assert (r.get("order:1"), r.get("fence:{order:1}")) == before
        held.release()

    def test_a_lease_that_has_ended_meanwhile_is_not_taken(self, held, r):
        owner = held.owner_id.encode()
        held.release()
        freed = free(r, b"order:1", owner, CLOCK)
        assert not freed.freed
        assert "free" in freed.problem
        assert not r.exists("order:1")

    def test_the_next_waiter_is_woken_and_has_a_greater_token(self, held, client_factory, r):
        client = client_factory()
        waiter = FencedLock(client, "order:1", timeout=30, sleep=10, thread_local=False)
        freed = []

        def take_away():
            wait_until(lambda: r.exists("queue:{order:1}"))
            (resource,) = Reader(r, CLOCK).read([b"order:1"])
            assert resource.waiters == 1
            freed.append(free_from(r, held))

        taken, _ = run_threads(lambda: waiter.acquire(blocking_timeout=8), take_away)
        assert taken
        assert waiter.fence_token > freed[0].token
        waiter.release()

    def test_a_ticket_is_shown_in_words_and_not_freed(self, r):
        r.mset({"fence:{order:1}": 5, "order:1": "ticket:web:1:abc:web:2:def"})
        (resource,) = Reader(r, CLOCK).read([b"order:1"])
        assert (resource.owner, resource.status.owner) == (None, None)
        assert (resource.status.held, resource.status.note) == (True, "about to be taken by a waiter")
        with pytest.raises(ValueError, match="no owner"):
            free(r, b"order:1", r.get("order:1"), CLOCK)
        assert r.exists("order:1")

    @pytest.mark.parametrize("owner", [b"", b"hash"])
    def test_a_key_that_is_no_lock_is_not_deleted(self, r, owner):
        r.hset("order:1", "a", 1)
        if owner:
            assert not free(r, b"order:1", owner, CLOCK).freed
        else:
            with pytest.raises(ValueError, match="no owner"):
                free(r, b"order:1", owner, CLOCK)
        assert r.type("order:1") == b"hash"

    def test_small_numbers_go_on(self, r):
        lock = FencedLock(r, "order:1", timeout=30, issuer="counter")
        lock.acquire()
        assert free_from(r, lock, CounterIssuer()).token == 2
        with FencedLock(r, "order:1", timeout=30, issuer="counter") as later:
            assert later.fence_token == 3

    def test_a_broken_counter_does_not_keep_a_lease(self, held, r):
        r.set("fence:{order:1}", "broken")
        freed = free_from(r, held)
        assert freed.freed
        assert "is not a number" in freed.problem
        assert not r.exists("order:1")

    def test_names_and_owners_may_be_any_bytes(self, any_client, r):
        r.mset({b"fence:{caf\xe9}": 8, b"caf\xe9": b"own\xe9r"})
        (resource,) = Reader(any_client, CLOCK).read([b"caf\xe9"])
        assert (resource.owner, resource.status.owner) == (b"own\xe9r", "own\\xe9r")
        assert free(any_client, resource.name, resource.owner, CLOCK).freed
        assert not r.exists(b"caf\xe9")

    def test_a_lost_reply_is_made_up_for(self, held, proxy, client_factory, r):
        client = client_factory(proxy.url)
        client.ping()
        proxy.drop_reply("EVALSHA")
        freed = free_from(client, held)
        assert freed.freed
        assert not r.exists("order:1")

    def test_a_server_that_is_down_is_an_error_and_not_a_success(self, proxy, client_factory, held):
        client = client_factory(proxy.url, socket_timeout=0.2)
        proxy.close()
        with pytest.raises(redis.ConnectionError):
            free_from(client, held)


class TestTheRows:
    @pytest.mark.usefixtures("models")
    def test_writes_are_refused_at_once_to_rows_of_registered_models(self, held, r):
        order, other = Order.objects.create(pk=1), Order.objects.create(pk=2)
        assert Order.objects.filter(pk=1).fenced_update(held.fence_token, repeatable=True, status="mine")
        token = held.fence_token
        freed = free_from(r, held)
        assert freed.rows == 1
        # Nobody else has written since.
        assert not Order.objects.filter(pk=1).fenced_update(token, repeatable=True, status="late")
        order.refresh_from_db()
        other.refresh_from_db()
        assert (order.status, order.fence_token, other.fence_token) == ("mine", freed.token, 0)
        with FencedLock(r, "order:1", timeout=30) as later:
            assert Order.objects.filter(pk=1).fenced_update(later.fence_token, status="later")

    def test_without_a_registered_model_they_are_refused_once_the_next_holder_has_written(self, held, r):
        Order.objects.create(pk=1)
        token = held.fence_token
        assert free_from(r, held).rows == 0
        with FencedLock(r, "order:1", timeout=30) as later:
            Order.objects.filter(pk=1).fenced_update(later.fence_token, status="later")
        assert not Order.objects.filter(pk=1).fenced_update(token, status="late")

    @pytest.mark.usefixtures("models")
    def test_the_next_holder_is_never_outdated_however_long_the_rows_take(self, held, client_factory, r, monkeypatch):
        Order.objects.create(pk=1)
        monkeypatch.setattr("fenced_locks.freeing._TIMEOUT", 0.05)
        outdate = Registered.outdate
        tokens = []

        def late(self, resource, token):
            # The lease under which the rows are written has ended, and somebody else has come.
            with FencedLock(client_factory(), "order:1", timeout=30, blocking_timeout=5) as later:
                tokens.append(later.fence_token)
                return outdate(self, resource, token) if self.model is Order else 0

        monkeypatch.setattr(Registered, "outdate", late)
        freed = free_from(r, held)
        assert tokens[0] > freed.token
        assert Order.objects.filter(pk=1).fenced_update(tokens[0], status="later")

    def test_names_are_read_backwards_exactly(self, settings, r):
        settings.FENCED_LOCKS = {"MODELS": {"app.Stock": "stock:<shop>:<sku>"}}
        names = [("a", "b:c"), ("a:b", "c"), ("a", "b"), ("{a}", "b"), ("", "b")]
        rows = {name: Stock.objects.create(shop=name[0], sku=name[1]) for name in names}
        (each,) = registered_models()
        assert {row.pk for row in each.rows("stock:a:b:c")} == {rows["a", "b:c"].pk, rows["a:b", "c"].pk}
        assert [row.pk for row in each.rows("stock:a:b")] == [rows["a", "b"].pk]
        assert [row.pk for row in each.rows("stock:%7Ba%7D:b")] == [rows["{a}", "b"].pk]
        assert list(each.rows("stock::b")) == list(each.rows("stock:a")) == list(each.rows("x")) == []

    @pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
    @pytest.mark.django_db(databases=["default", "postgres", "mariadb"])
    def test_what_a_database_cannot_even_compare_is_no_row_and_harms_no_transaction(self, settings, alias):
        settings.DATABASE_ROUTERS = [Everywhere(alias)]
        settings.FENCED_LOCKS = {"MODELS": {"app.Stock": "<sku>:<changed_at>", "app.Order": "<status>:<amount>"}}
        Order.objects.create(status="new", amount=1)
        stocks, orders = registered_models()
        for name in ("a\0:1", "a:9999-12-31 23:59:59-20:00", "a:2020-13-01 00:00", "\ud800:1", "new:" + "9" * 5000):
            assert list(stocks.rows(name)) == list(orders.rows(name)) == []
        assert len(list(orders.rows("new:1"))) == 1

    def test_a_name_with_too_many_readings_is_told_and_freed(self, settings, r):
        settings.FENCED_LOCKS = {"MODELS": {"app.Stock": "<shop>:<sku>:<barcode>"}}
        lock = FencedLock(r, ":" * 100, timeout=30)
        lock.acquire()
        freed = free_from(r, lock)
        assert freed.freed
        assert "in more than 1000 ways" in freed.problem
        assert not r.exists(lock.name)

    def test_one_resource_for_all_rows_of_a_table(self, settings):
        settings.FENCED_LOCKS = {"MODELS": {"app.Order": "orders"}}
        Order.objects.bulk_create([Order() for _ in range(1500)])
        assert len(list(registered_models()[0].rows("orders"))) == 1500

    @pytest.mark.parametrize("trouble", [KeyboardInterrupt, InterfaceError("connection already closed")])
    @pytest.mark.usefixtures("models")
    def test_trouble_while_rows_are_written_keeps_no_lease(self, held, r, trouble):
        Order.objects.create(pk=1)

        def fail(*_query):
            raise trouble

        with connection.execute_wrapper(fail), suppress(KeyboardInterrupt):
            freed = free_from(r, held)
            assert (freed.freed, "app.Order could not be given" in freed.problem) == (True, True)
        assert not r.exists("order:1")

    @pytest.mark.parametrize("name", ["order:01", "order: 1", "order:x", "order:" + "9" * 40, "order:1\0", "order:1.0"])
    @pytest.mark.usefixtures("models")
    def test_what_the_database_takes_for_equal_is_another_resource(self, name):
        Order.objects.create(pk=1)
        assert list(registered_models()[0].rows(name)) == []

    def test_rows_through_a_relation_and_of_a_child_with_its_own_table(self, settings, r):
        settings.FENCED_LOCKS = {"MODELS": {"app.SpecialOrder": "customer:<customer.name>"}}
        customer = Customer.objects.create(name="Ada")
        special = SpecialOrder.objects.create(customer=customer)
        lock = FencedLock(r, "customer:Ada", timeout=30)
        lock.acquire()
        assert free_from(r, lock).rows == 1
        special.refresh_from_db()
        assert special.fence_token > lock.fence_token

    def test_tokens_from_the_database(self, settings, r):
        settings.FENCED_LOCKS = {"ISSUER": "database", "MODELS": {"app.Order": "order:<pk>"}}
        Order.objects.create(pk=1)
        lock = FencedLock(r, "order:1", timeout=30, issuer="database")
        lock.acquire()
        (resource,) = Reader(r, DatabaseIssuer()).read([b"order:1"])
        assert resource.status.token == 1
        assert resource.owner == lock.owner_id.encode()
        freed = free_from(r, lock, DatabaseIssuer())
        assert (freed.token, freed.rows, freed.problem) == (2, 1, "")
        assert not r.exists("order:1")

    def test_a_setting_that_cannot_be_used_keeps_no_lease(self, settings, held, r):
        settings.FENCED_LOCKS = {"MODELS": {"app.Ordre": "order:<pk>"}}
        freed = free_from(r, held)
        assert freed.freed
        assert "app.Ordre" in freed.problem
        assert not r.exists("order:1")


@pytest.mark.django_db(transaction=True, databases=["default", "postgres"])
def test_a_row_that_a_transaction_has_locked_is_not_waited_for(settings, held, r):
    settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>"}}
    settings.DATABASE_ROUTERS = [ToPostgres()]
    Order.objects.using("postgres").create(pk=1)
    owner, token = held.owner_id.encode(), held.fence_token
    locked, done = threading.Event(), threading.Event()

    def hang():
        with transaction.atomic(using="postgres"):
            assert Order.objects.using("postgres").filter(pk=1).fenced_update(token, status="hangs")
            locked.set()
            assert done.wait(20)

    def take_away():
        assert locked.wait(20)
        try:
            return free(r, b"order:1", owner, CLOCK)
        finally:
            done.set()

    _, freed = run_threads(hang, take_away)
    assert freed.freed
    assert "app.Order" in freed.problem
    assert not r.exists("order:1")


class ToPostgres:
    """Orders are written there."""

    def db_for_write(self, model, **hints):
        return "postgres" if model is Order else None


class Everywhere:
    """All rows are in one database."""

    def __init__(self, alias):
        self._alias = alias

    def db_for_write(self, model, **hints):
        return self._alias
