"""The admin of the shop: for looking. Its forms save without a lock and a token, so it does not write."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from shop.models import Order, Stock


class LookOnly(admin.ModelAdmin):
    """An admin that shows rows and leaves every change to the views, which hold the lock."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False


@admin.register(Order)
class OrderAdmin(LookOnly):
    """Orders with the token of their last write."""

    list_display = ["pk", "customer", "amount", "status", "fence_token"]
    list_filter = ["status"]
    search_fields = ["customer"]


@admin.register(Stock)
class StockAdmin(LookOnly):
    """Stock with the token of its last write."""

    list_display = ["sku", "name", "quantity", "fence_token"]
    search_fields = ["sku", "name"]
