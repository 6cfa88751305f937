"""A change for which SQLite makes the table anew."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Room for longer subjects."""

    dependencies = [("guarded", "0002_guards")]

    operations = [
        migrations.AlterField(model_name="ticket", name="subject", field=models.CharField(max_length=80)),
    ]
