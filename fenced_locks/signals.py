"""
Signals.

``stale_write_rejected``: a fenced write changed no row. Sender is the model; with it come ``token``, ``current`` (the
greatest token among the rows in question, or None), ``reason`` (``"stale"``, ``"repeated"`` or ``"missing"``) and
``using``, the database alias. Sent only after the write, and only then is the reason looked up; an error in a
receiver is logged by Django and breaks nothing.
"""

from __future__ import annotations

from django.dispatch import Signal

stale_write_rejected = Signal()
