"""Serve the shop at once: the database is made ready first, without a command of its own."""

import os
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.management.commands import runserver
from django.core.management import call_command
from django.utils.autoreload import DJANGO_AUTORELOAD_ENV


class Command(runserver.Command):
    """Django's own `runserver`, after `seed`."""

    help = "Make the shop's database ready, then serve the shop for development."

    def handle(self, *args: Any, **options: Any) -> None:
        """Seed in the first process only; the reloader's second one finds everything there."""
        if os.environ.get(DJANGO_AUTORELOAD_ENV) != "true":
            call_command("seed")
            users = get_user_model().objects
            if settings.DEBUG and not users.exists():
                users.create_superuser("admin", password="admin")
                self.stdout.write("The admin of the shop has the user admin with the password admin.")
        super().handle(*args, **options)
