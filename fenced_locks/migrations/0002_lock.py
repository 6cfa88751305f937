"""The permissions of the admin page "Fenced locks"; no table is made."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fenced_locks", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Lock",
            fields=[("resource", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "fenced lock",
                "verbose_name_plural": "fenced locks",
                "permissions": [("release_lock", "Can release fenced lock")],
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
    ]
