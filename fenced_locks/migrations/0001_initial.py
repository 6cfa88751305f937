"""The table of the issuer ``database``."""

from __future__ import annotations

from django.db import migrations, models

from ..fields import ExactCharField


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="FenceCounter",
            fields=[
                ("resource", ExactCharField(max_length=255, primary_key=True, serialize=False)),
                ("token", models.BigIntegerField()),
            ],
        ),
    ]
