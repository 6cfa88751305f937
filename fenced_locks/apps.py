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
        from . import checks, guards

        for check in (
            checks.check_settings,
            checks.check_alias,
            checks.check_issuer,
            checks.check_models,
            checks.check_found_rows,
        ):
            register(check, checks.TAG)
        # Not under our own tag: Django 6 asks every database for a tag that was named, and the others look at settings.
        register(checks.check_guards, Tags.database)
        register(checks.check_strict_guards, Tags.database)
        post_migrate.connect(guards.restore_guards, sender=self, dispatch_uid="fenced_locks.restore_guards")
