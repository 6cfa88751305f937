"""The first tables of the shop. `FencedModel` brings the column `fence_token`."""

from django.db import migrations, models

import fenced_locks.fields


class Migration(migrations.Migration):
    """Orders and stock."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("fence_token", fenced_locks.fields.FenceTokenField()),
                ("customer", models.CharField(max_length=80)),
                ("amount", models.DecimalField(decimal_places=2, max_digits=9)),
                (
                    "status",
                    models.CharField(
                        choices=[("open", "Open"), ("confirmed", "Confirmed"), ("cancelled", "Cancelled")],
                        default="open",
                        max_length=20,
                    ),
                ),
            ],
            options={"ordering": ["pk"]},
        ),
        migrations.CreateModel(
            name="Stock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("fence_token", fenced_locks.fields.FenceTokenField()),
                ("sku", models.SlugField(max_length=40, unique=True)),
                ("name", models.CharField(max_length=80)),
                ("quantity", models.PositiveIntegerField(default=0)),
            ],
            options={"verbose_name_plural": "stock", "ordering": ["sku"]},
        ),
    ]
