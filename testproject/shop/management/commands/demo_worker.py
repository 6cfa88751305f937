"""A worker process of the demo; `manage.py demo` starts it."""

from typing import Any

from django.core.management import BaseCommand, CommandParser

from shop.demo import worker


class Command(BaseCommand):
    """Take locks and write orders, step by step as the parent says."""

    help = "A worker process of the demo; `manage.py demo` starts it."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """What to write, and the length of the lease in seconds."""
        parser.add_argument("status")
        parser.add_argument("lease", type=float)

    def handle(self, *args: Any, **options: Any) -> None:
        """Work until the parent has nothing more to say."""
        worker.run(options["status"], options["lease"])
