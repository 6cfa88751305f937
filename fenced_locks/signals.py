"""
Signals. An error in a receiver is logged, and breaks nothing.

About leases, sent by the class of the lock, with ``lock``, ``resource``, ``fence_token`` and ``owner_id``:

``lease_acquired``: a lock was taken; ``waited``, the seconds that it took.
``lease_renewed``: its end was moved by ``renew=True``; ``remaining``, the seconds until the new end. Sent in the thread
that renews all locks of the process, so a receiver that is slow holds up the others.
``lease_released``: it was given back; ``held``, the seconds since it was asked for.
``lease_lost``: it was found to have ended, or to be somebody else's, while it was held; ``held``. Once for each lease.

``lease_refused``: a lock stayed busy until the wait was over. With ``lock``, ``resource`` and ``waited``, and with
``owner_id`` and ``remaining`` of who has it, None where that is not known.

``stale_write_rejected``: a fenced write changed no row, or a save or an upsert was refused. Sender is the model; with
it come ``token``, ``current`` (the greatest token among the rows in question, or None), ``reason`` (``"stale"``,
``"repeated"`` or ``"missing"``) and ``using``, the database alias. Sent at once, also within a transaction. Where the
write itself does not tell why, the reason is looked up only if somebody listens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

from .logs import about

_log = logging.getLogger(__name__)

Observer = Callable[[Any, dict[str, Any]], object]


class LeaseSignal(Signal):
    """
    A signal about a lease; besides receivers it has observers.

    An observer is a function that neither blocks nor awaits. It is called at once, with the lease and the arguments of
    the signal, in the very thread or task: where a lock awaits, a receiver would run in another thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.observers: tuple[Observer, ...] = ()

    def is_heard(self) -> bool:
        """Return whether anybody wants to know."""
        return bool(self.receivers or self.observers)

    def observe(self, lease: Any, message: dict[str, Any]) -> None:
        """Tell the observers."""
        for observer in self.observers:
            try:
                observer(lease, message)
            except Exception:  # noqa: BLE001 - nothing that listens breaks a lock
                _log.exception("an observer of a lease failed", extra=about(message["resource"]))


stale_write_rejected = Signal()
lease_acquired = LeaseSignal()
lease_renewed = LeaseSignal()
lease_released = LeaseSignal()
lease_lost = LeaseSignal()
lease_refused = LeaseSignal()


def send(signal: Signal, sender: object, details: dict[str, Any]) -> None:
    """Send a signal; whatever goes wrong is logged."""
    try:
        signal.send_robust(sender, **details)
    except Exception:  # noqa: BLE001 - nothing that listens breaks a lock or a write
        # A receiver that is a coroutine function, while an event loop runs in this thread.
        _log.exception("could not send a signal", extra=about(details.get("resource")))
