"""Tables without guards."""

import django.db.models.deletion
from django.db import migrations, models

import fenced_locks.fields


class Migration(migrations.Migration):
    """A parent with its child, and a table whose name needs quotes."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Ticket",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("fence_token", fenced_locks.fields.FenceTokenField()),
                ("subject", models.CharField(max_length=40)),
            ],
            options={"abstract": False},
        ),
        migrations.CreateModel(
            name="Ledger",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("fence_token", fenced_locks.fields.FenceTokenField()),
                ("balance", models.IntegerField(default=0)),
            ],
            options={"db_table": "guarded books"},
        ),
        migrations.CreateModel(
            name="Complaint",
            fields=[
                (
                    "ticket_ptr",
                    models.OneToOneField(
                        auto_created=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        parent_link=True,
                        primary_key=True,
                        serialize=False,
                        to="guarded.ticket",
                    ),
                ),
                ("about", models.CharField(max_length=80)),
            ],
            options={"abstract": False},
            bases=("guarded.ticket",),
        ),
    ]
