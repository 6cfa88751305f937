"""The shop of the example project."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Orders and stock, both written under fence tokens."""

    name = "shop"
    default_auto_field = "django.db.models.BigAutoField"
