"""
The views of the shop: each takes the lock of what it writes, and writes under the token of that lease.

A busy resource answers 423, a stale write 409; both come from `with_fenced_lock`.
"""

import time

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.http import require_POST, require_safe

from fenced_locks import with_fenced_lock
from shop.entries import entries
from shop.models import Order, Stock
from shop.writes import fenced_write

SLOW_LEASE = 5
SLOW_WORK = 12


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """List orders and stock with the token of their last write. Reading takes no lock."""
    context = {
        "orders": entries(Order.objects.all(), "order:{0.pk}"),
        "stock": entries(Stock.objects.all(), "stock:{0.sku}"),
        "slow_lease": SLOW_LEASE,
        "slow_work": SLOW_WORK,
    }
    return render(request, "shop/index.html", context)


@require_POST
@with_fenced_lock("order:<id>")
def confirm(request: HttpRequest, id: int) -> HttpResponse:
    """Confirm an order, unless it was cancelled."""
    order = get_object_or_404(Order, pk=id)
    if order.status == Order.Status.CANCELLED:
        return _back(request, messages.WARNING, f"Order {id} is cancelled.")
    fenced_write(Order.objects.filter(pk=id), request.fence_token, status=Order.Status.CONFIRMED)
    return _back(request, messages.SUCCESS, f"Order {id} confirmed under token {request.fence_token}.")


@require_POST
@with_fenced_lock("order:<id>", timeout=SLOW_LEASE)
def confirm_slowly(request: HttpRequest, id: int) -> HttpResponse:
    """Confirm an order, but work for longer than the lease: what a long pause can do to any program."""
    get_object_or_404(Order, pk=id)
    slow_work()
    fenced_write(Order.objects.filter(pk=id), request.fence_token, status=Order.Status.CONFIRMED)
    return _back(request, messages.SUCCESS, f"Order {id} confirmed slowly under token {request.fence_token}.")


@method_decorator(require_POST, name="dispatch")
@method_decorator(with_fenced_lock("order:<id>"), name="dispatch")
class CancelOrder(View):
    """Cancel an order: a class-based view under a lock."""

    def post(self, request: HttpRequest, id: int) -> HttpResponse:
        """Write the status under the token that the decorator put on the request."""
        fenced_write(Order.objects.filter(pk=id), request.fence_token, status=Order.Status.CANCELLED)
        return _back(request, messages.SUCCESS, f"Order {id} cancelled under token {request.fence_token}.")


@require_POST
@with_fenced_lock("stock:<sku>")
def sell(request: HttpRequest, sku: str) -> HttpResponse:
    """Take one piece out of stock: read, decide and write under one lease."""
    stock = get_object_or_404(Stock, sku=sku)
    if stock.quantity == 0:
        return _back(request, messages.WARNING, f"{stock.name} is sold out.")
    fenced_write(Stock.objects.filter(sku=sku), request.fence_token, quantity=stock.quantity - 1)
    return _back(request, messages.SUCCESS, f"One {stock.name} sold under token {request.fence_token}.")


@method_decorator(require_POST, name="dispatch")
@method_decorator(with_fenced_lock("stock:<sku>"), name="dispatch")
class Restock(View):
    """Put ten pieces into stock."""

    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        """Add to what is there."""
        stock = get_object_or_404(Stock, sku=sku)
        fenced_write(Stock.objects.filter(sku=sku), request.fence_token, quantity=stock.quantity + 10)
        return _back(request, messages.SUCCESS, f"Ten {stock.name} added under token {request.fence_token}.")


def slow_work() -> None:
    """Take longer than the lease lasts."""
    time.sleep(SLOW_WORK)


def _back(request: HttpRequest, level: int, text: str) -> HttpResponse:
    messages.add_message(request, level, text)
    return redirect("index")
