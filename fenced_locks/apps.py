"""The app: it registers the system checks and connects what puts fence guards back."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate


class FencedLocksConfig(AppConfig):
    """``"fenced_locks"`` in ``INSTALLED_APPS``."""

    name = "fenced_locks"
    verbose_name = "Fenced locks"

    def ready(self) -> None:
        """Register the system checks; after ``migrate``, once per database, look after the guards."""
        from . import guards
        from .checks import TAG, models, servers, settings

        for check in (
            settings.check_settings,
            settings.check_alias,
            settings.check_client,
            settings.check_issuer,
            settings.check_found_rows,
            models.check_managers,
            models.check_registered,
            servers.check_servers_when_named,
        ):
            register(check, TAG)
        # Without our tag: named, it has them run already.
        register(servers.check_servers, deploy=True)
        # Not under our own tag: Django 6 asks every database for a tag that was named, and the others look at settings.
        register(models.check_guards, Tags.database)
        register(models.check_strict_guards, Tags.database)
        post_migrate.connect(guards.restore_guards, sender=self, dispatch_uid="fenced_locks.restore_guards")
