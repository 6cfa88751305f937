"""What users write, checked by mypy strict with django-stubs, and by pyright; never run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import cast

import redis
import redis.asyncio
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline

from fenced_locks import (
    AsyncFencedLock,
    AsyncFencedRequest,
    FencedLock,
    FencedRequest,
    LockNotAcquired,
    StaleToken,
    afenced_lock,
    fenced_lock,
    with_fenced_lock,
)
from fenced_locks.issuers import ClockIssuer, DatabaseIssuer, ExternalIssuer
from fenced_locks.reentrant import AsyncReentrantLock, ReentrantLock
from fenced_locks.several import AsyncReentrantLocks, ReentrantLocks
from tests.app.models import Order, Parcel


@with_fenced_lock("order:<id>", timeout=10)
def confirm(request: HttpRequest, id: int) -> HttpResponse:
    with fenced_lock(f"order:{id}") as lock:
        token = lock.fence_token
        assert token is not None
        if not Order.objects.filter(pk=id).fenced_update(token, status="confirmed"):
            raise StaleToken(token=token)
    return HttpResponse("done")


@with_fenced_lock("order:<id>", timeout=timedelta(seconds=5), blocking_timeout=None)
def ship(id: int, *, fence_token: int) -> int:
    return Order.objects.filter(pk=id).fenced_update(fence_token, status="shipped")


changed: int = ship(7)


@with_fenced_lock("order:<id>")
def cancel(request: FencedRequest, id: int) -> HttpResponse:
    lock: FencedLock = request.fenced_lock
    token: int = request.fence_tokens[f"order:{id}"]
    assert token == request.fence_token
    lock.ensure_held()
    changed = Order.objects.filter(pk=id).fenced_update(request.fence_token, status="cancelled")
    return HttpResponse(f"{changed} by {request.user}")


@with_fenced_lock("order:<id>")
async def acancel(request: AsyncFencedRequest, id: int) -> HttpResponse:
    lock: AsyncFencedLock = request.fenced_lock
    await lock.ensure_held()
    return HttpResponse(await Order.objects.filter(pk=id).afenced_update(request.fence_token, status="cancelled"))


@method_decorator(with_fenced_lock("order:<id>"), name="dispatch")
class Confirm(View):
    def post(self, request: FencedRequest, id: int) -> HttpResponse:
        Order.objects.filter(pk=id).fenced_update(request.fence_token, status="confirmed")
        return HttpResponse(request.fenced_lock.name)


@method_decorator(with_fenced_lock("order:<id>"), name="dispatch")
class Cancel(View):
    def post(self, request: FencedRequest, id: int) -> HttpResponse:
        return HttpResponse(str(self.cancel(id)))

    def cancel(self, id: int) -> int:
        token = cast("FencedRequest", self.request).fence_token
        return Order.objects.filter(pk=id).fenced_update(token, status="cancelled")


def tokens() -> int:
    orders = Order.objects.filter(pk=1)
    with fenced_lock("order:1") as lock:
        changed = orders.fenced_update(lock.fence_tokens["order:1"]) + orders.fenced_update(lock.advance())
        return changed + orders.fenced_update(lock.ensure_held(), repeatable=True)


def plain(client: redis.Redis) -> int | None:
    lock = FencedLock(client, "order:1", timeout=10, issuer=ClockIssuer(retention=timedelta(days=1)))
    try:
        with lock:
            owner: str | None = lock.owner_id
            token: int | None = lock.fence_token
            lock.extend(10)
            following: int = lock.advance() + lock.advance(at_least=5)
            assert following
            assert owner
            return token
    except LockNotAcquired as busy:
        described: tuple[str | None, str | None, float | None] = busy.resource, busy.owner_id, busy.remaining
        return len(described)


class Numbers(ExternalIssuer):
    name = "numbers"

    def issue(self, resource: str) -> int:
        return len(resource)


def issuers(client: redis.Redis) -> None:
    FencedLock(client, "order:1", issuer=Numbers)
    FencedLock(client, "order:1", issuer=Numbers())
    fenced_lock("order:1", issuer="database")
    fenced_lock("order:1", issuer=DatabaseIssuer)


def managers() -> int:
    return Parcel.objects.fenced_update(5) + Parcel.as_manager.all().open().fenced_update(6)


def upserts() -> bool:
    parcel, created = Parcel.objects.fenced_update_or_create(5, {"status": "sent"}, pk=1)
    parcel, found = Parcel.objects.fenced_get_or_create(5, pk=1)
    written: int | None = Parcel.objects.fenced_bulk_upsert([parcel], 6, unique_fields=["pk"], update_fields=["status"])
    return created or not found or written is None


async def async_upserts() -> str:
    parcel, _ = await Parcel.objects.afenced_update_or_create(5, pk=1, repeatable=True)
    status: str = parcel.status
    return status


@with_fenced_lock("order:<id>", "stock:<sku>", timeout=10, on_busy=lambda busy, id, sku: 0)
def pick(id: int, sku: str, *, fence_tokens: Mapping[str, int]) -> int:
    return Order.objects.filter(pk=id).fenced_update(fence_tokens[f"order:{id}"], status="picked")


picked: int = pick(7, "x")


def several() -> None:
    one: ReentrantLock = fenced_lock("order:1", timeout=10)
    named: ReentrantLock = fenced_lock(resource="order:1")
    both: ReentrantLocks = fenced_lock("order:1", "stock:x", timeout=10, using="default")
    with both as locks, one, named:
        tokens: Mapping[str, int] = locks.fence_tokens
        token: int = tokens["order:1"]
        left: float | None = locks.remaining()
        held: Mapping[str, int] = locks.ensure_held()
        names: tuple[str, ...] = locks.resources
        locks.lost.wait(left)
        assert one.fence_tokens[names[0]] == held[names[0]] == token
    if fenced_lock("order:1", "stock:x").acquire(blocking_timeout=timedelta(seconds=1)):
        both.release()
    fenced_lock()  # type: ignore[call-overload]
    fenced_lock("order:1", 7)  # type: ignore[call-overload]


async def several_async() -> int:
    one: AsyncReentrantLock = afenced_lock("order:1", renew=True)
    both: AsyncReentrantLocks = afenced_lock("order:1", "stock:x", "zone:9", renew=True)
    async with one, both as locks:
        await locks.ensure_held()
        await locks.lost.wait()
        return locks.fence_tokens["zone:9"]


def take_one(pipe: Pipeline) -> int:
    pipe.multi()
    pipe.decr("left")
    return 1


async def look(pipe: AsyncPipeline) -> None:
    await pipe.watch("more")


def transactions(lock: FencedLock) -> None:
    lock.transaction(take_one, "left", b"more", timeout=timedelta(seconds=2), value_from_callable=True)
    lock.transaction(lambda pipe: pipe.multi(), timeout=None, watch_delay=0.1)


async def async_transactions(lock: AsyncFencedLock) -> None:
    await lock.transaction(look, "left")
