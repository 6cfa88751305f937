"""A guard through a child, and a strict one."""

from django.db import migrations

from fenced_locks.operations import AddFenceGuard


class Migration(migrations.Migration):
    """Guards on two tables."""

    dependencies = [("guarded", "0001_initial")]

    operations = [AddFenceGuard("Complaint"), AddFenceGuard("ledger", strict=True)]
