"""The database of a run: its server, its tables, and the trigger that notes what was accepted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import servers

from .history import Accepted
from .plans import RESOURCES

_COLUMNS = "row, old_token, new_token, old_write, new_write"
_VALUES = "NEW.id, OLD.fence_token, NEW.fence_token, OLD.write_id, NEW.write_id"
_NOTE = f"INSERT INTO chaos_accepted ({_COLUMNS}) VALUES ({_VALUES});".replace("(row,", "({row},")
# An AFTER trigger, so the row is locked and the numbers of one row are in the order of its writes.
_TRIGGERS = {
    "sqlite": ("CREATE TRIGGER chaos_note AFTER UPDATE ON chaos_row BEGIN {note} END",),
    "postgresql": (
        "CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note} RETURN NULL; END $$",
        "CREATE TRIGGER chaos_note AFTER UPDATE ON chaos_row FOR EACH ROW EXECUTE FUNCTION chaos_note()",
    ),
    "mysql": ("CREATE TRIGGER chaos_note AFTER UPDATE ON chaos_row FOR EACH ROW BEGIN {note} END",),
}
NAMES = ("sqlite", "postgresql", "mariadb")


@contextlib.contextmanager
def database(name: str, directory: Path) -> Iterator[dict[str, Any]]:
    """Start the server, if it is one, and yield an entry for ``DATABASES``; a server ends with the block."""
    if name == "sqlite":
        # A worker that is frozen in a write keeps the others from writing until it runs on.
        options = {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"}
        yield {"ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "chaos.sqlite3"), "OPTIONS": options}
        return
    start = {"postgresql": servers.PostgresServer, "mariadb": servers.MariadbServer}[name]
    with start() as server:
        if name == "mariadb":
            _create_database(server.settings("mysql"))
        yield server.settings()


def _create_database(entry: dict[str, Any]) -> None:
    import pymysql

    with pymysql.connect(user=entry["USER"], unix_socket=entry["HOST"]) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE fenced")


def prepare() -> None:
    """Make the tables, the trigger and the rows."""
    from django.core.management import call_command
    from django.db import connection

    from .models import AcceptedWrite, Row

    call_command("migrate", "fenced_locks", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Row)
        editor.create_model(AcceptedWrite)
    note = _NOTE.format(row=connection.ops.quote_name("row"))
    with connection.cursor() as cursor:
        for statement in _TRIGGERS[connection.vendor]:
            cursor.execute(statement.format(note=note))
    Row.objects.bulk_create(Row(pk=number) for number, _ in enumerate(RESOURCES, 1))


def accepted() -> list[Accepted]:
    """Return what the trigger has noted, in its order."""
    from .models import AcceptedWrite

    fields = ("pk", "row", "old_token", "new_token", "old_write", "new_write")
    return [Accepted(*values) for values in AcceptedWrite.objects.order_by("pk").values_list(*fields).iterator()]


def repair() -> None:
    """Raise counters that are behind their rows, as somebody does who owns small numbers; the network may fail it."""
    from django.core.management import CommandError, call_command
    from django.db import connections

    arguments = ("--model", "chaos.Row", "--resource", "row:<pk>", "--repair")
    with contextlib.suppress(CommandError), open(os.devnull, "w") as nowhere:
        call_command("fence_status", *arguments, verbosity=0, stdout=nowhere, stderr=nowhere)
    connections.close_all()
