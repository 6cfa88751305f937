"""The rows that everybody fights for, and what a trigger notes of each write."""

from __future__ import annotations

from django.db import models

from fenced_locks.models import FencedModel


class Row(FencedModel):
    """``value`` counts the writes, ``write_id`` names the last."""

    value = models.BigIntegerField(default=0)
    write_id = models.CharField(max_length=60, default="")

    class Meta:
        app_label = "chaos"
        db_table = "chaos_row"

    def __str__(self) -> str:
        return f"row {self.pk}"


class AcceptedWrite(models.Model):
    """One UPDATE of a row, written by the database itself in the transaction of the UPDATE."""

    row = models.BigIntegerField()
    old_token = models.BigIntegerField()
    new_token = models.BigIntegerField()
    old_write = models.CharField(max_length=60)
    new_write = models.CharField(max_length=60)

    class Meta:
        app_label = "chaos"
        db_table = "chaos_accepted"

    def __str__(self) -> str:
        return f"{self.pk}: {self.new_write}"
