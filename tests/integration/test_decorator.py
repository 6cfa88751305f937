"""``with_fenced_lock`` on functions, views and class-based views."""

import contextlib
import functools
import json

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from fenced_locks import FencedLock, LeaseLost, LockNotAcquired, StaleToken, fenced_lock, with_fenced_lock

pytestmark = pytest.mark.usefixtures("r")

request_factory = RequestFactory()


@with_fenced_lock("order:<id>", timeout=10)
def confirm(request, id):
    return HttpResponse(f"{request.fence_token} {request.fenced_lock.owner_id}")


@with_fenced_lock("order:<id>", blocking_timeout=0)
def ship(id, carrier="post", *, fence_token, note=""):
    return id, carrier, fence_token, note


def test_a_view_runs_under_the_lock_and_finds_the_lease_on_its_request(r):
    held = []

    @with_fenced_lock("order:<id>")
    def view(request, id):
        held.append(r.get(f"order:{id}").decode())
        return HttpResponse(f"{request.fence_token} {request.fenced_lock.owner_id}")

    token, owner = view(request_factory.get("/"), 7).content.decode().split()
    assert held == [owner]
    assert int(r.get("fence:{order:7}")) == int(token)
    assert not r.exists("order:7")


@pytest.mark.parametrize(("args", "kwargs"), [((7,), {}), ((), {"id": 7})])
def test_placeholders_bind_by_position_and_by_name(r, args, kwargs):
    assert ship(*args, **kwargs)[:2] == (7, "post")
    assert r.keys("fence:*") == [b"fence:{order:7}"]


def test_a_parameter_called_fence_token_is_filled_and_cannot_be_passed(r):
    first, second = ship(7), ship(7, "pigeon", note="x")
    assert 0 < first[2] < second[2]
    assert second[1] == "pigeon"
    assert second[3] == "x"
    with pytest.raises(TypeError, match="fence_token"):
        ship(7, fence_token=5)
    assert "fence_token" not in str(__import__("inspect").signature(ship))


def test_a_fence_token_in_the_middle_of_the_positional_parameters_is_filled_in_its_place():
    @with_fenced_lock("order:<id>")
    def function(fence_token, id, /, rest, *more):
        return fence_token, id, rest, more

    token, *others = function(7, "rest", "more")
    assert token > 0
    assert others == [7, "rest", ("more",)]


def test_defaults_fill_placeholders_too(r):
    @with_fenced_lock("report:<day>")
    def report(day="today"):
        return r.exists("report:today")

    assert report() == 1


def test_wrong_arguments_fail_as_the_function_itself_would_and_before_the_lock(r):
    with pytest.raises(TypeError, match="missing a required argument: 'id'"):
        ship()
    assert r.keys("*") == []


@pytest.mark.parametrize("value", [None, ""])
def test_a_value_that_names_no_resource_is_refused_before_the_lock(r, value):
    with pytest.raises(ValueError, match="'id'"):
        ship(value)
    assert r.keys("*") == []


def test_an_unknown_name_fails_at_decoration():
    with pytest.raises(ValueError, match="names 'pk', which is no parameter"):
        with_fenced_lock("order:<pk>")(lambda request, id: None)
    with pytest.raises(ValueError, match="names 'fence_token'"):
        with_fenced_lock("order:<fence_token>")(lambda fence_token: None)


async def async_view(request, id):
    """Never runs."""


async def async_generator(id):
    yield id


def generator(id):
    yield id


@pytest.mark.parametrize("function", [async_generator, generator, "text", 7])
def test_what_would_run_without_the_lock_is_refused_at_decoration(function):
    with pytest.raises(TypeError, match=r"generator|not"):
        with_fenced_lock("order:<id>")(function)


def test_a_class_is_refused_and_the_error_says_how_a_view_is_decorated():
    with pytest.raises(TypeError, match=r"^with_fenced_lock decorates .* not <class .*Page'>; .* method_decorator\("):

        @with_fenced_lock("order:<id>")
        class Page(View):
            """Would be no class any more."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, r"^timeout must be greater than 0 .* got 0$"),
        ({"timeout": "5"}, r"^timeout must be seconds .* not '5'$"),
        ({"blocking_timeout": -1}, r"^blocking_timeout must be 0 or more .* got -1$"),
        ({"max_hold": True}, r"^max_hold must be seconds .* not True$"),
        ({"renew": "no"}, r"^renew must be True or False, not 'no'$"),
    ],
)
def test_bad_arguments_are_refused_at_decoration(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        with_fenced_lock("order:<id>", **options)


def test_what_is_awaited_cannot_answer_for_what_is_not():
    async def answer(busy, id):
        return "busy"

    with pytest.raises(TypeError, match=r"on_busy must not be a coroutine function, since .*answer"):
        with_fenced_lock("order:<id>", on_busy=answer)(lambda id: id)


def test_arguments_that_are_collected_under_the_name_of_the_token_are_not_filled_in(r):
    @with_fenced_lock("order:1")
    def function(*fence_token, **fence_tokens):
        return fence_token, fence_tokens

    assert function(1, 2, x=3) == ((1, 2), {"x": 3})


def test_forgotten_parentheses_are_a_clear_error():
    with pytest.raises(TypeError, match="resource must be a string"):

        @with_fenced_lock
        def function():
            """Never runs."""


def test_an_awaitable_result_is_refused_at_call_time():
    late = with_fenced_lock("order:1")(lambda: async_view(None, 7))
    with pytest.raises(TypeError, match="would run after the lease is given back"):
        late()


def test_a_busy_resource_answers_423_with_retry_after(r):
    view = with_fenced_lock("order:<id>", blocking_timeout=0.01)(lambda request, id: pytest.fail("must not run"))
    with FencedLock(r, "order:7", timeout=2.95):
        response = view(request_factory.get("/"), 7)
        assert response.status_code == 423
        assert response["Retry-After"] == "3"
        assert response["Content-Type"].startswith("text/plain")
        assert "order:7" not in response.content.decode()
        response = view(request_factory.get("/", headers={"accept": "application/json"}), 7)
        assert response.status_code == 423
        assert json.loads(response.content) == {
            "error": "locked",
            "detail": "Somebody else is working on this. Try again in 3 s.",
            "retry_after": 3,
        }
    with FencedLock(r, "order:7"):
        assert view(request_factory.get("/"), 7)["Retry-After"] == "5"


def test_a_busy_resource_raises_from_a_function(r):
    with FencedLock(r, "order:7", timeout=10), pytest.raises(LockNotAcquired, match="'order:7' is busy"):
        ship(7)


def test_on_busy_answers_instead(r):
    def answer(busy, *args, **kwargs):
        return busy.resource, args, kwargs

    function = with_fenced_lock("order:<id>", blocking_timeout=0, on_busy=answer)(lambda id, note: None)
    with FencedLock(r, "order:7", timeout=10):
        assert function(7, note="x") == ("order:7", (7,), {"note": "x"})
    with pytest.raises(TypeError, match="on_busy must be callable"):
        with_fenced_lock("order:<id>", on_busy="later")


def test_only_the_locks_own_refusal_is_answered():
    @with_fenced_lock("order:<id>", on_busy=lambda *args: pytest.fail("must not be asked"))
    def function(id):
        raise LockNotAcquired("another one")

    with pytest.raises(LockNotAcquired, match="another one"):
        function(7)


def test_a_stale_token_that_escapes_a_view_answers_409():
    @with_fenced_lock("order:<id>")
    def view(request, id):
        raise StaleToken(token=request.fence_token)

    response = view(request_factory.get("/"), 7)
    assert response.status_code == 409
    response = view(request_factory.get("/", headers={"accept": "application/json"}), 7)
    assert json.loads(response.content)["error"] == "stale"

    @with_fenced_lock("order:<id>")
    def function(id, fence_token):
        raise StaleToken(token=fence_token)

    with pytest.raises(StaleToken):
        function(7)


def test_the_lease_is_released_when_the_body_raises_and_its_error_wins(r):
    @with_fenced_lock("order:<id>")
    def function(id):
        r.delete("order:7")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        function(7)
    assert not r.exists("order:7")


def test_a_lease_lost_during_a_view_is_logged_and_during_a_function_raised(r, caplog):
    @with_fenced_lock("order:<id>")
    def view(request, id):
        r.delete(f"order:{id}")
        return HttpResponse("done")

    assert view(request_factory.get("/"), 7).content == b"done"
    assert "its release failed" in caplog.text

    with pytest.raises(LeaseLost):
        with_fenced_lock("order:7")(lambda: r.delete("order:7"))()


def test_the_lock_can_be_used_again_inside_and_is_the_same_lease():
    @with_fenced_lock("order:<id>")
    def view(request, id):
        with fenced_lock(f"order:{id}") as lock:
            assert lock.fence_token == request.fence_token
        return HttpResponse("done")

    assert view(request_factory.get("/"), 7).status_code == 200


def test_stacked_locks_give_the_innermost_token_inside_and_the_outer_one_back(r):
    seen = []

    def between(view):
        @functools.wraps(view)
        def wrapper(request, id, sku):
            before = request.fence_token
            response = view(request, id, sku)
            assert request.fence_token == before
            seen.append(before)
            return response

        return wrapper

    @with_fenced_lock("order:<id>")
    @between
    @with_fenced_lock("stock:<sku>")
    def view(request, id, sku):
        assert r.exists("order:7", "stock:x") == 2
        seen.append(request.fence_token)
        return HttpResponse("done")

    view(request_factory.get("/"), 7, "x")
    assert seen == [int(r.get("fence:{stock:x}")), int(r.get("fence:{order:7}"))]


def test_a_token_that_the_lease_gets_during_a_view_is_the_requests():
    @with_fenced_lock("order:<id>")
    def view(request, id, fence_token):
        assert request.fenced_lock.advance() == request.fence_token > fence_token
        with fenced_lock(f"order:{id}") as lock:
            assert lock.advance() == request.fence_token
        with fenced_lock("order:8") as other:
            assert other.advance() != request.fence_token
        return HttpResponse(str(request.fence_token))

    request = request_factory.get("/")
    assert view(request, 7).content.decode() == str(request.fence_token)


def test_the_outer_lock_of_a_request_may_get_a_token_while_the_inner_one_is_shown():
    tokens = []

    @with_fenced_lock("stock:<sku>")
    def inner(request, id, sku):
        inner_token = request.fence_token
        with fenced_lock(f"order:{id}") as order:
            tokens.append(order.advance())
        assert request.fence_token == inner_token
        assert request.fenced_lock.advance() == request.fence_token > inner_token
        return HttpResponse("done")

    @with_fenced_lock("order:<id>")
    def outer(request, id, sku):
        inner(request, id, sku)
        assert request.fence_token == request.fenced_lock.fence_token == tokens[0]
        assert request.fenced_lock.advance() == request.fence_token > tokens[0]
        return HttpResponse("done")

    assert outer(request_factory.get("/"), 7, "x").content == b"done"


def test_a_second_lock_of_the_same_resource_shows_the_one_token():
    @with_fenced_lock("order:<id>")
    @with_fenced_lock("order:<id>")
    def view(request, id):
        return HttpResponse(str(request.fenced_lock.advance()))

    request = request_factory.get("/")
    assert view(request, 7).content.decode() == str(request.fence_token)


def test_a_request_that_goes_from_one_lock_to_the_next_keeps_the_first_ones_token():
    request, view = request_factory.get("/"), with_fenced_lock("order:<id>")(lambda request, id: request.fence_token)
    first = view(request, 7)
    assert view(request, 7) > first
    assert request.fence_token == first


def test_class_based_views_are_decorated_by_method_decorator(r):
    @method_decorator(with_fenced_lock("order:<id>"), name="dispatch")
    class Confirm(View):
        def post(self, request, id):
            assert r.exists("order:7")
            return HttpResponse(str(request.fence_token))

    class Ship(View):
        @method_decorator(with_fenced_lock("order:<id>"))
        def post(self, request, id):
            assert r.exists("order:7")
            return HttpResponse(str(request.fence_token))

    class Plain(View):
        @with_fenced_lock("order:<id>")
        def post(self, request, id):
            assert r.exists("order:7")
            return HttpResponse(str(request.fence_token))

    for view in (Confirm, Ship, Plain):
        response = view.as_view()(request_factory.post("/"), id=7)
        assert int(response.content) == int(r.get("fence:{order:7}"))


def test_an_async_class_based_view_is_refused_rather_than_run_without_the_lock():
    @method_decorator(with_fenced_lock("order:<id>"), name="dispatch")
    class Confirm(View):
        async def post(self, request, id):
            """Never runs."""

    with pytest.raises(TypeError, match="after the lease is given back"):
        Confirm.as_view()(request_factory.post("/"), id=7)


def test_names_reach_attributes_of_the_request(r):
    request = request_factory.get("/")
    request.user = type("User", (), {"pk": 3})()
    with_fenced_lock("cart:<request.user.pk>")(lambda request: None)(request)
    assert r.keys("fence:*") == [b"fence:{cart:3}"]


def test_an_alias_of_the_decorator_is_used_and_a_bad_one_is_a_clear_error(r):
    assert with_fenced_lock("order:1", using="plain")(lambda: r.exists("order:1"))() == 1
    with pytest.raises(ImproperlyConfigured, match="'elsewhere'"):
        with_fenced_lock("order:1", using="elsewhere")(lambda: None)()


def test_braces_in_a_value_cannot_make_a_hash_tag(r):
    ship("a}b{c")
    assert r.keys("fence:*") == [b"fence:{order:a%7Db%7Bc}"]


def passes_on(view):
    @functools.wraps(view)
    def wrapper(request, *args, **kwargs):
        assert not args
        return view(request, **kwargs)

    return wrapper


def injects_an_argument(view):
    @functools.wraps(view)
    def wrapper(request, id):
        return view(request, id, order=f"order {id}")

    return wrapper


@with_fenced_lock("order:<id>")
@passes_on
def behind_a_wrapper(request, id):
    return HttpResponse(f"{id}")


@with_fenced_lock("order:<id>")
@injects_an_argument
def with_more_than_its_caller_gives(request, id, order):
    return HttpResponse(order)


@with_fenced_lock("order:<id>")
@passes_on
@with_fenced_lock("stock:<id>")
def with_token(request, id, fence_token):
    return HttpResponse(f"{fence_token - request.fence_token}")


@pytest.mark.parametrize(
    ("view", "answer"),
    [(behind_a_wrapper, b"7"), (with_more_than_its_caller_gives, b"order 7"), (with_token, b"0")],
)
def test_arguments_reach_what_is_decorated_as_they_were_passed(r, view, answer):
    assert view(request_factory.get("/"), id=7).content == answer
    assert r.exists("fence:{order:7}")


@pytest.mark.parametrize("second", [never_cache, with_fenced_lock("stock:<id>")])
def test_lists_of_method_decorators_and_subclasses(second):
    decorators = [with_fenced_lock("order:<id>"), second]

    @method_decorator(decorators, name="dispatch")
    class Confirm(View):
        @method_decorator(decorators)
        def post(self, request, id):
            return HttpResponse(str(request.fence_token))

    class Child(Confirm):
        def dispatch(self, request, *args, **kwargs):
            return super().dispatch(request, *args, **kwargs)

    for view in (Confirm, Child):
        assert int(view.as_view()(request_factory.post("/"), id=7).content)


def test_the_first_argument_makes_a_view_whatever_its_name():
    @with_fenced_lock("order:<id>")
    def view(req, id):
        return HttpResponse(str(req.fence_token))

    assert int(view(req=request_factory.get("/"), id=7).content)


def test_a_helper_that_is_handed_a_request_is_no_view(r):
    @with_fenced_lock("order:<id>", blocking_timeout=0)
    def charge(id, request):
        pytest.fail("must not run")

    with FencedLock(r, "order:7", timeout=10), pytest.raises(LockNotAcquired):
        charge(7, request_factory.get("/"))


def test_a_context_manager_or_generator_that_is_returned_is_refused():
    @contextlib.contextmanager
    def manager():
        yield

    amanager = contextlib.asynccontextmanager(async_generator)
    for function in (manager, lambda: generator(7), lambda: amanager(7), lambda: async_generator(7)):
        with pytest.raises(TypeError, match="after the lease is given back"):
            with_fenced_lock("order:7")(function)()


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_it_stands_below_staticmethod_and_classmethod(kind):
    with pytest.raises(TypeError, match=r"below staticmethod|decorates functions"):
        with_fenced_lock("order:7")(kind(lambda: None))
