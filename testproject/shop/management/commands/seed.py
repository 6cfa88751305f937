"""Create the tables and the sample rows of the shop where they are missing."""

from typing import Any

from django.core.management import BaseCommand, call_command

from shop.seed import seed


class Command(BaseCommand):
    """Make the shop's database ready; running it again changes nothing."""

    help = "Create the tables and the sample rows of the shop where they are missing."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate, then add the rows."""
        call_command("migrate", verbosity=0)
        seed()
