"""
Signals.

``stale_write_rejected``: a fenced write changed no row. Sender is the model; with it come ``token``, ``current`` (the
greatest token among the rows in question, or None), ``reason`` (``"stale"``, ``"repeated"`` or ``"missing"``) and
``using``, the database alias. Sent only after the write, and only then is the reason looked up; an error in a
receiver is logged by Django and breaks nothing.

About leases, sent by the class of the lock, with ``lock``, ``resource``, ``fence_token`` and ``owner_id``; an error in
a receiver is logged by Django and breaks nothing:

``lease_acquired``: a lock was taken; ``waited``, the seconds that it took.
``lease_renewed``: its end was moved by ``renew=True``; ``remaining``, the seconds until the new end. Sent in the thread
that renews all locks of the process, so a receiver that is slow holds up the others.
``lease_released``: it was given back; ``held``, the seconds since it was asked for.
``lease_lost``: it was found to have ended, or to be somebody else's, while it was held; ``held``. Once for each lease.
"""

from __future__ import annotations

from django.dispatch import Signal

stale_write_rejected = Signal()
lease_acquired = Signal()
lease_renewed = Signal()
lease_released = Signal()
lease_lost = Signal()
