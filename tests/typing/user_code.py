"""What users write, checked by mypy strict with django-stubs, and by pyright; never run."""

from __future__ import annotations

from datetime import timedelta

import redis
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from fenced_locks import (
    AsyncFencedLock,
    AsyncFencedRequest,
    FencedLock,
    FencedRequest,
    LockNotAcquired,
    StaleToken,
    fenced_lock,
    with_fenced_lock,
)
from fenced_locks.issuers import ClockIssuer, DatabaseIssuer, ExternalIssuer
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


def plain(client: redis.Redis) -> int | None:
    lock = FencedLock(client, "order:1", timeout=10, issuer=ClockIssuer(retention=timedelta(days=1)))
    try:
        with lock:
            owner: str | None = lock.owner_id
            token: int | None = lock.fence_token
            lock.extend(10)
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
