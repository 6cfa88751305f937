"""Under ATOMIC_REQUESTS the order is: lock, BEGIN, view, COMMIT, release."""

import pytest
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from fenced_locks import StaleToken, with_fenced_lock
from tests.app.models import Order
from tests.helpers import run_threads

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("r")]

events = []


def note(what):
    events.append((what, connection.in_atomic_block))


@with_fenced_lock("order:<id>")
def one(request, id):
    note("view")
    transaction.on_commit(lambda: events.append(("committed", bool(exists("order:7")))))
    return HttpResponse("done")


def exists(key):
    from django_redis import get_redis_connection

    return get_redis_connection().exists(key)


@with_fenced_lock("order:<id>")
@with_fenced_lock("stock:<id>")
def two(request, id):
    note("view")
    transaction.on_commit(lambda: events.append(("committed", exists("order:7") + exists("stock:7") == 2)))
    return HttpResponse("done")


@with_fenced_lock("order:<id>")
def failing(request, id):
    Order.objects.create(status="half")
    raise StaleToken(token=request.fence_token)


@transaction.non_atomic_requests
@with_fenced_lock("order:<id>")
def excepted_outside(request, id):
    note("view")
    return HttpResponse("done")


@with_fenced_lock("order:<id>")
@transaction.non_atomic_requests
def excepted_inside(request, id):
    note("view")
    return HttpResponse("done")


@method_decorator(with_fenced_lock("order:<id>"), name="dispatch")
@method_decorator(with_fenced_lock("stock:<id>"), name="dispatch")
class OnDispatch(View):
    def post(self, request, id):
        return two.__wrapped__.__wrapped__(request, id)


class OnPost(View):
    @method_decorator(with_fenced_lock("order:<id>"))
    def post(self, request, id):
        pytest.fail("must not run")


@with_fenced_lock("order:<id>")
def deposit(request, id):
    order = Order.objects.using("postgres").get(pk=id)
    changed = Order.objects.using("postgres").filter(pk=id)
    changed.fenced_update(request.fence_token, amount=order.amount + 10)
    return HttpResponse("done")


urlpatterns = [
    path("one/<int:id>", one),
    path("two/<int:id>", two),
    path("failing/<int:id>", failing),
    path("outside/<int:id>", excepted_outside),
    path("inside/<int:id>", excepted_inside),
    path("dispatch/<int:id>", OnDispatch.as_view()),
    path("post/<int:id>", OnPost.as_view()),
    path("deposit/<int:id>", deposit),
]


@pytest.fixture(autouse=True)
def atomic_requests(settings, monkeypatch):
    settings.ROOT_URLCONF = __name__
    events.clear()
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


def test_the_view_runs_inside_a_transaction_that_is_committed_before_the_release(r):
    assert Client().post("/one/7").status_code == 200
    assert events == [("view", True), ("committed", True)]
    assert not r.exists("order:7")


@pytest.mark.parametrize("path", ["/two/7", "/dispatch/7"])
def test_stacked_all_locks_are_taken_first_and_released_last(r, path):
    assert Client().post(path).status_code == 200
    assert events == [("view", True), ("committed", True)]
    assert not r.exists("order:7", "stock:7")


def test_an_error_rolls_back_before_it_is_answered():
    assert Client().post("/failing/7").status_code == 409
    assert Order.objects.count() == 0


@pytest.mark.parametrize("path", ["/outside/7", "/inside/7"])
def test_a_view_that_the_user_excepted_gets_no_transaction(path):
    assert Client().post(path).status_code == 200
    assert events == [("view", False)]


def test_where_the_mark_cannot_reach_django_it_says_so_at_call_time(r):
    with pytest.raises(transaction.TransactionManagementError, match=r"that ATOMIC_REQUESTS opened .* dispatch"):
        Client().post("/post/7")
    assert r.keys("*") == []


def test_without_atomic_requests_no_transaction_is_opened(monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    assert Client().post("/one/7").status_code == 200
    assert events[0] == ("view", False)


@pytest.mark.django_db(transaction=True, databases=["default", "postgres"])
def test_no_deposit_is_lost(monkeypatch):
    monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
    order = Order.objects.using("postgres").create()

    def deposits():
        client = Client()
        for _ in range(10):
            assert client.post(f"/deposit/{order.pk}").status_code == 200

    run_threads(*[deposits] * 4)
    order.refresh_from_db()
    assert order.amount == 400
