"""``with_fenced_lock`` for several resources: views, functions, classes, sync and async, and under ATOMIC_REQUESTS."""

import asyncio
import inspect

import pytest
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from fenced_locks import FencedLock, LeaseLost, LockNotAcquired, StaleToken, fenced_lock, with_fenced_lock
from tests.app.models import Order
from tests.several import held

pytestmark = pytest.mark.usefixtures("r")
NAMES = ("order:7", "stock:x")
LOCKED = with_fenced_lock("stock:<sku>", "order:<id>", blocking_timeout=0.05)

requests, async_requests = RequestFactory(), AsyncRequestFactory()
seen = []


def tokens_of(r):
    return {name: int(r.get(f"fence:{{{name}}}")) for name in NAMES}


@LOCKED
def view(request, id, sku):
    seen.append((dict(request.fence_tokens), request.fenced_lock.resources, connection.in_atomic_block))
    transaction.on_commit(lambda: seen.append(request.fenced_lock.fence_tokens))
    return HttpResponse("done")


@LOCKED
def careless(request, id, sku):
    return HttpResponse(Order.objects.filter(pk=id).fenced_update(request.fence_token, status="new"))


@method_decorator(LOCKED, name="dispatch")
class OnDispatch(View):
    def post(self, request, id, sku):
        return view.__wrapped__(request, id, sku)


class OnPost(View):
    @method_decorator(LOCKED)
    def post(self, request, id, sku):
        return view.__wrapped__(request, id, sku)


@LOCKED
async def async_view(request, id, sku):
    await request.fenced_lock.ensure_held()
    seen.append((dict(request.fence_tokens), request.fenced_lock.resources, False))
    return HttpResponse("done")


urlpatterns = [
    path("view/<int:id>/<str:sku>", view),
    path("dispatch/<int:id>/<str:sku>", OnDispatch.as_view()),
    path("post/<int:id>/<str:sku>", OnPost.as_view()),
    path("async/<int:id>/<str:sku>", async_view),
]


@pytest.fixture(autouse=True)
def _nothing_seen(settings):
    settings.ROOT_URLCONF = __name__
    seen.clear()


@pytest.mark.django_db(transaction=True)
class TestViews:
    @pytest.mark.parametrize("kind", ["view", "dispatch", "post", "async"])
    def test_the_request_has_the_tokens_by_resource(self, kind, r):
        assert Client().post(f"/{kind}/7/x").status_code == 200
        assert seen[0] == (tokens_of(r), ("stock:x", "order:7"), False)
        assert not held(r, NAMES)

    def test_a_single_token_is_refused_and_the_error_says_what_to_use(self):
        with pytest.raises(TypeError, match=r"no single fence token: .*request\.fence_tokens\['stock:x'\]"):
            careless(requests.post("/"), 7, "x")

    def test_one_resource_has_tokens_by_resource_too(self):
        @with_fenced_lock("order:<id>")
        def one(request, id):
            assert request.fence_tokens == {f"order:{id}": request.fence_token}
            return HttpResponse("done")

        assert one(requests.post("/"), 7).status_code == 200

    def test_names_that_bind_to_the_same_resource_collapse(self):
        @with_fenced_lock("account:<source>", "account:<target>")
        def transfer(request, source, target):
            with pytest.raises(TypeError, match=r"request\.fence_tokens\['account:1'\]"):
                int(request.fence_token)
            return HttpResponse(len(request.fence_tokens))

        assert transfer(requests.post("/"), 1, 2).content == b"2"
        assert transfer(requests.post("/"), 1, 1).content == b"1"

    @pytest.mark.parametrize("at", NAMES)
    def test_a_busy_one_answers_423_and_nothing_is_held(self, at, r):
        with FencedLock(r, at, timeout=2.5):
            response = view(requests.post("/"), 7, "x")
            assert (response.status_code, response["Retry-After"]) == (423, "3")
            assert asyncio.run(async_view(async_requests.post("/"), 7, "x")).status_code == 423
            assert held(r, NAMES) == 1

    def test_a_stale_write_answers_409(self, r):
        @LOCKED
        def late(request, id, sku):
            raise StaleToken(token=request.fence_tokens[f"order:{id}"])

        assert late(requests.post("/"), 7, "x").status_code == 409
        assert not held(r, NAMES)

    def test_a_lease_that_a_view_lost_is_logged_since_its_work_is_done(self, r, caplog):
        @LOCKED
        def slow(request, id, sku):
            r.delete("stock:x")
            return HttpResponse("done")

        assert slow(requests.post("/"), 7, "x").content == b"done"
        assert "its release failed: cannot release the lease of 'stock:x'" in caplog.text
        assert not held(r, NAMES)

    def test_stacked_the_outer_tokens_come_back(self, r):
        def between(view):
            def wrapper(request, id, sku):
                outer = request.fence_token, request.fence_tokens, request.fenced_lock
                view(request, id, sku)
                assert (request.fence_tokens, request.fenced_lock) == outer[1:]
                assert request.fence_token is outer[0]
                seen.append(dict(request.fence_tokens))
                return HttpResponse("done")

            wrapper.__wrapped__ = view
            return wrapper

        @with_fenced_lock("aisle:<id>", "order:<id>")
        @between
        @with_fenced_lock("stock:<sku>")
        def both(request, id, sku):
            assert request.fence_tokens == {"stock:x": request.fence_token}
            return HttpResponse("done")

        both(requests.post("/"), 7, "x")
        assert list(seen[0]) == ["aisle:7", "order:7"]


class TestFunctions:
    def test_a_parameter_called_fence_tokens_is_filled_and_cannot_be_passed(self, r):
        @LOCKED
        def pack(id, *, sku, fence_tokens, note=""):
            return id, sku, dict(fence_tokens), note

        assert pack(7, sku="x", note="!") == (7, "x", tokens_of(r), "!")
        assert str(inspect.signature(pack)) == "(id, *, sku, note='')"
        with pytest.raises(TypeError, match="fence_tokens is filled in"):
            pack(7, sku="x", fence_tokens={})

    def test_for_one_resource_both_may_be_there_in_any_place(self):
        @with_fenced_lock("order:<id>")
        def pack(fence_tokens, id, fence_token, /, note, *more):
            return dict(fence_tokens), id, fence_token, note, more

        tokens, number, token, *others = pack(7, "note", "more")
        assert (tokens, number, others) == ({"order:7": token}, 7, ["note", ("more",)])

        @with_fenced_lock("order:<id>")
        def ship(id, fence_token, fence_tokens, note=""):
            return {f"order:{id}": fence_token} == fence_tokens, note

        assert ship(7, "x") == (True, "x")
        assert ship(id=7, note="y") == (True, "y")

    def test_a_parameter_for_a_single_token_fails_at_decoration(self):
        with pytest.raises(TypeError, match=r"call the parameter fence_tokens, .*\(id, sku, fence_token\)"):

            @LOCKED
            def pack(id, sku, fence_token):
                """Never runs."""

    def test_a_name_of_any_resource_that_the_signature_lacks_fails_at_decoration(self):
        with pytest.raises(ValueError, match="'stock:<sku>' names 'sku'"):
            with_fenced_lock("order:<id>", "stock:<sku>")(lambda id: None)
        with pytest.raises(TypeError, match="resource must be a string"):
            with_fenced_lock("order:<id>", 7)

    def test_a_value_that_names_nothing_is_refused_before_anything_is_taken(self, r):
        with pytest.raises(ValueError, match="'id' is None"):
            LOCKED(lambda sku, id: None)("x", None)
        assert r.keys("*") == []

    def test_busy_and_on_busy(self, r):
        function = LOCKED(lambda id, sku: pytest.fail("must not run"))
        options = {"blocking_timeout": 0, "on_busy": lambda busy, *args: (busy.resource, args)}
        answered = with_fenced_lock("order:<id>", "stock:<sku>", **options)(lambda id, sku: None)
        with FencedLock(r, "stock:x", timeout=10):
            with pytest.raises(LockNotAcquired, match=r"'stock:x' is busy: .*'order:7' was given back"):
                function(7, "x")
            assert answered(7, "x") == ("stock:x", (7, "x"))
        assert not held(r, NAMES)

    def test_options_reach_all(self, r):
        @with_fenced_lock("order:<id>", "stock:<sku>", timeout=1, renew=True, max_hold=60, using="plain")
        def slow(id, sku):
            with fenced_lock("order:7", "stock:x") as locks:
                assert not locks.lost.wait(1.5)
                return locks.remaining() <= 1

        assert slow(7, "x")

    def test_a_loss_is_raised(self, r):
        with pytest.raises(LeaseLost, match="order:7"):
            LOCKED(lambda id, sku: r.delete("order:7"))(7, "x")

    def test_a_coroutine_function(self, r):
        @LOCKED
        async def pack(id, sku, fence_tokens):
            return dict(fence_tokens)

        assert asyncio.run(pack(7, "x")) == tokens_of(r)
        assert not held(r, NAMES)
        with FencedLock(r, "stock:x", timeout=10), pytest.raises(LockNotAcquired, match="'stock:x' is busy"):
            asyncio.run(pack(7, "x"))

    def test_a_call_inside_enters_again(self, r):
        @LOCKED
        def inner(id, sku, fence_tokens):
            return dict(fence_tokens)

        @with_fenced_lock("stock:<sku>", "aisle:<id>", "order:<id>")
        def outer(id, sku, fence_tokens):
            tokens = inner(id, sku)
            assert tokens == {name: fence_tokens[name] for name in NAMES}
            return held(r, [*NAMES, "aisle:7"])

        assert outer(7, "x") == 3


@pytest.mark.django_db(transaction=True)
class TestUnderAtomicRequests:
    @pytest.fixture(autouse=True)
    def _atomic_requests(self, monkeypatch):
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    @pytest.mark.parametrize("kind", ["view", "dispatch"])
    def test_all_are_taken_before_begin_and_given_back_after_the_commit(self, kind, r):
        assert Client().post(f"/{kind}/7/x").status_code == 200
        # On commit they are held still: the tokens can be read.
        assert seen == [(tokens_of(r), ("stock:x", "order:7"), True), tokens_of(r)]
        assert not held(r, NAMES)

    def test_where_the_mark_cannot_reach_django_it_says_so(self, r):
        with pytest.raises(transaction.TransactionManagementError, match="cannot lock 'stock:x', 'order:7' inside"):
            Client().post("/post/7/x")
        assert r.keys("*") == []

    def test_a_stale_write_rolls_back(self, r):
        @LOCKED
        def failing(request, id, sku):
            Order.objects.create(status="half")
            raise StaleToken(token=request.fence_tokens["order:7"])

        assert failing(requests.post("/"), 7, "x").status_code == 409
        assert Order.objects.count() == 0
        assert not held(r, NAMES)
