"""``with_fenced_lock`` on coroutine functions: async views, async functions, methods."""

import asyncio
import json

import pytest
from asgiref.sync import iscoroutinefunction
from django.http import HttpResponse
from django.test import AsyncRequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from fenced_locks import AsyncFencedLock, FencedLock, LockNotAcquired, StaleToken, afenced_lock, with_fenced_lock

requests = AsyncRequestFactory()


def run(coroutine):
    async def main():
        return await asyncio.wait_for(coroutine, 20)

    return asyncio.run(main())


@with_fenced_lock("order:<id>", blocking_timeout=0.05)
async def view(request, id):
    """Show the token."""
    assert isinstance(request.fenced_lock, AsyncFencedLock)
    await request.fenced_lock.ensure_held()
    return HttpResponse(str(request.fence_token))


urlpatterns = [path("order/<int:id>", view)]


def test_an_async_view_stays_one_and_finds_its_lease_in_the_request(r):
    assert iscoroutinefunction(view)
    assert view.__name__ == "view"
    response = run(view(requests.get("/"), 7))
    assert int(response.content) == int(r.get("fence:{order:7}"))
    assert not r.exists("order:7")


def test_a_token_that_the_lease_gets_during_a_view_is_the_requests(r):
    @with_fenced_lock("order:<id>")
    async def view(request, id, fence_token):
        assert await request.fenced_lock.advance() == request.fence_token > fence_token
        async with afenced_lock(f"order:{id}") as lock:
            assert await lock.advance() == request.fence_token
        return HttpResponse(str(request.fence_token))

    assert int(run(view(requests.get("/"), 7)).content) == int(r.get("fence:{order:7}"))


def test_a_busy_resource_answers_423(r):
    with FencedLock(r, "order:7", timeout=2.95):
        response = run(view(requests.get("/", headers={"accept": "application/json"}), 7))
    assert (response.status_code, response["Retry-After"]) == (423, "3")
    assert json.loads(response.content)["error"] == "locked"


def test_a_stale_write_answers_409_and_gives_the_lease_back(r):
    @with_fenced_lock("order:<id>")
    async def late(request, id):
        raise StaleToken("too late")

    assert run(late(requests.get("/"), 7)).status_code == 409
    assert not r.exists("order:7")


def test_a_lease_that_a_view_lost_is_logged_since_its_work_is_done(r, caplog):
    @with_fenced_lock("order:<id>")
    async def slow(request, id):
        r.delete("order:7")
        return HttpResponse("done")

    assert run(slow(requests.get("/"), 7)).content == b"done"
    assert "its release failed" in caplog.text


def test_an_async_function_gets_the_token_and_raises_when_busy(r):
    @with_fenced_lock("order:<id>", blocking_timeout=0.05)
    async def confirm(id, fence_token, note=""):
        return fence_token, note

    token, note = run(confirm(7, note="x"))
    assert (token, note) == (int(r.get("fence:{order:7}")), "x")
    with FencedLock(r, "order:7", timeout=10), pytest.raises(LockNotAcquired, match="order:7"):
        run(confirm(7))


@pytest.mark.parametrize("is_async", [True, False])
def test_on_busy_answers_instead_and_may_be_a_coroutine_function(r, is_async):
    async def later(error, id):
        return error, id

    def at_once(error, id):
        return error, id

    @with_fenced_lock("order:<id>", blocking_timeout=0, on_busy=later if is_async else at_once)
    async def work(id):
        pytest.fail("must not run")

    with FencedLock(r, "order:7", timeout=10):
        error, number = run(work(7))
    assert isinstance(error, LockNotAcquired)
    assert number == 7


def test_an_error_of_the_function_gives_the_lease_back(r):
    @with_fenced_lock("order:<id>")
    async def fails(id):
        assert r.exists("order:7")
        raise KeyError(id)

    with pytest.raises(KeyError):
        run(fails(7))
    assert not r.exists("order:7")


def test_a_cancelled_call_gives_the_lease_back(r):
    started = asyncio.Event()

    @with_fenced_lock("order:<id>")
    async def hangs(id):
        started.set()
        await asyncio.Event().wait()

    async def work():
        task = asyncio.create_task(hangs(7))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work())
    assert not r.exists("order:7")


def test_stacked_decorators_and_nested_calls_hold_both(r):
    @with_fenced_lock("order:<id>")
    @with_fenced_lock("stock:<id>")
    async def work(id):
        return r.exists("order:7", "stock:7")

    assert run(work(7)) == 2
    assert not r.exists("order:7", "stock:7")


def test_the_async_dispatch_of_a_class_based_view(r):
    @method_decorator(with_fenced_lock("order:<id>"), name="dispatch")
    class Orders(View):
        async def get(self, request, id):
            return HttpResponse(str(r.exists("order:7")))

    async def work():
        return await Orders.as_view()(requests.get("/"), id=7)

    # What dispatch of such a view returns is a coroutine, which would run without the lock.
    with pytest.raises(TypeError, match="would run after the lease is given back"):
        run(work())

    class Methods(View):
        @method_decorator(with_fenced_lock("order:<id>"))
        async def get(self, request, id):
            return HttpResponse(str(r.exists("order:7")))

    async def work_in_method():
        return await Methods.as_view()(requests.get("/"), id=7)

    assert run(work_in_method()).content == b"1"
    assert not r.exists("order:7")


@override_settings(ROOT_URLCONF=__name__)
def test_under_atomic_requests_an_async_view_still_gets_djangos_own_error(settings, db, async_client):
    settings.DATABASES["default"]["ATOMIC_REQUESTS"] = True
    try:
        with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS with async views"):
            run(async_client.get("/order/7"))
    finally:
        settings.DATABASES["default"]["ATOMIC_REQUESTS"] = False
