"""Show with real processes what a lock alone cannot prevent, and that fencing does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management import BaseCommand, CommandError


class Command(BaseCommand):
    """Play the story twice, and check what the server and the database say."""

    help = "Show with real processes how a lock alone loses a write and how a fence token saves it (about 5 s)."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Exit with 1 if anything that the demo claims did not happen."""
        if not hasattr(signal, "SIGSTOP"):
            raise CommandError("The demo freezes a process with SIGSTOP, a POSIX signal that this system lacks.")
        # What it imports needs POSIX as well, so this comes after the check.
        from shop.demo import director, errors

        try:
            with _ended_in_order():
                director.perform(self._write, self.style)
        except errors.DemoFailed as error:
            raise CommandError(f"The demo failed: {error}") from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted; the demo's server and workers are gone.", returncode=130) from None

    def _write(self, text: str) -> None:
        self.stdout.write(text)
        # Whoever watches through a pipe sees it happen, too.
        self.stdout.flush()


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Make SIGTERM clean up as Ctrl-C does: nobody else would wake a frozen worker."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
