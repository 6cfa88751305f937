"""The app: it registers the system checks and does nothing else."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class FencedLocksConfig(AppConfig):
    """``"fenced_locks"`` in ``INSTALLED_APPS``."""

    name = "fenced_locks"
    verbose_name = "Fenced locks"

    def ready(self) -> None:
        """Register the system checks."""
        from . import checks

        for check in (checks.check_settings, checks.check_alias, checks.check_issuer, checks.check_found_rows):
            register(check, checks.TAG)
