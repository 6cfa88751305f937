"""What the migrations of this app have made."""

from __future__ import annotations

from django.db import models

from fenced_locks.models import FencedModel


class Ticket(FencedModel):
    """A parent, with the column."""

    id = models.BigAutoField(primary_key=True)
    subject = models.CharField(max_length=80)

    def __str__(self) -> str:
        return self.subject


class Complaint(Ticket):
    """A child with a table of its own, through which the parent was guarded."""

    about = models.CharField(max_length=80)


class Ledger(FencedModel):
    """A table under a strict guard."""

    id = models.BigAutoField(primary_key=True)
    balance = models.IntegerField(default=0)

    class Meta:
        db_table = "guarded books"

    def __str__(self) -> str:
        return f"ledger {self.pk}"
