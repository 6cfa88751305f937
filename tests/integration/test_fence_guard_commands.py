"""Fence guards and Django's commands, on an app with migrations in files."""

from __future__ import annotations

import io
import re

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import OperationalError, connections, router
from django.db.migrations.recorder import MigrationRecorder

from fenced_locks.checks.models import check_guards, check_strict_guards
from fenced_locks.guards import promised_guards
from tests.guarded.models import Complaint, Ledger, Ticket
from tests.lab import DATABASES, refused

LOWER = "UPDATE guarded_ticket SET fence_token = 4 WHERE fence_token = 10"


@pytest.fixture(params=DATABASES)
def using(request):
    """A database in which the migrations of the app were applied when it was made."""
    yield request.param
    migrate(request.param)


def migrate(using, *arguments):
    call_command("migrate", *arguments, database=using, verbosity=0)


def warnings(using):
    found = run_checks(databases=[using])
    return [message.msg for message in found if message.id == "fenced_locks.W010"]


def execute(using, sql):
    with connections[using].cursor() as cursor:
        cursor.execute(sql)


def drop_by_hand(using, table="guarded_ticket"):
    quote = connections[using].ops.quote_name
    on_table = f" ON {quote(table)}" if using == "postgres" else ""
    execute(using, f"DROP TRIGGER {quote(f'{table}_fence_guard')}{on_table}")


def test_a_database_made_by_migrations_has_its_guards_also_after_a_rebuild(using):
    Complaint.objects.using(using).create(fence_token=10)
    Ledger.objects.using(using).create(fence_token=10)
    refused(execute, using, LOWER)
    refused(Ledger.objects.using(using).update, balance=4)
    assert warnings(using) == []


def test_makemigrations_sees_nothing_to_do(using):
    call_command("makemigrations", "guarded", check_changes=True, dry_run=True, verbosity=0)


def test_the_check_knows_which_guards_the_migrations_promise(using):
    promised = {(guard.name, guard.table, guard.strict) for guard in promised_guards(connections[using])}
    assert promised == {
        ("guarded_ticket_fence_guard", "guarded_ticket", False),
        ("guarded books_fence_guard", "guarded books", True),
    }


@pytest.mark.parametrize("table", ["guarded_ticket", "guarded books"])
def test_a_missing_guard_is_warned_about_and_put_back_by_migrate(using, table):
    drop_by_hand(using, table)
    (warning,) = warnings(using)
    assert f"'{table}_fence_guard' on table '{table}'" in warning
    assert f"in database '{using}'" in warning
    migrate(using)
    assert warnings(using) == []


@pytest.mark.parametrize("using", DATABASES[1:2], indirect=True)
def test_so_is_one_that_somebody_switched_off(using):
    execute(using, "ALTER TABLE guarded_ticket DISABLE TRIGGER guarded_ticket_fence_guard")
    assert len(warnings(using)) == 1
    migrate(using)
    assert warnings(using) == []


def test_so_is_one_that_does_something_else(using):
    drop_by_hand(using)
    body = {
        "default": "BEGIN SELECT 1; END",
        "postgres": "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "mariadb": "SET @nothing = 1",
    }[using]
    execute(using, f"CREATE TRIGGER guarded_ticket_fence_guard BEFORE UPDATE ON guarded_ticket FOR EACH ROW {body}")
    assert len(warnings(using)) == 1
    migrate(using)
    assert warnings(using) == []
    Ticket.objects.using(using).create(fence_token=10)
    refused(execute, using, LOWER)


def test_a_strict_guard_is_said_to_exclude_repeatable_writes(using):
    found = [message for message in run_checks(databases=[using]) if message.id == "fenced_locks.I011"]
    assert ["'guarded books'" in message.msg for message in found] == [True]
    migrate(using, "guarded", "0001")
    assert "fenced_locks.I011" not in {message.id for message in run_checks(databases=[using])}


def test_no_database_is_asked_unless_it_is_named(using, django_assert_num_queries):
    drop_by_hand(using)
    with django_assert_num_queries(0, using=using):
        for tags in (None, ["fenced_locks"]):
            assert "fenced_locks.W010" not in {message.id for message in run_checks(tags=tags)}


def test_migrating_back_takes_the_guards_along_and_their_promise(using):
    migrate(using, "guarded", "0001")
    assert warnings(using) == []
    Ticket.objects.using(using).create(fence_token=10)
    execute(using, LOWER)
    migrate(using, "guarded")
    Ticket.objects.using(using).create(fence_token=10)
    refused(execute, using, LOWER)


def test_a_table_that_the_migrations_made_and_somebody_dropped_does_not_stop_migrate(using):
    quote = connections[using].ops.quote_name
    execute(using, f"DROP TABLE {quote('guarded books')}")
    migrate(using)
    assert len(warnings(using)) == 1
    recorder = MigrationRecorder(connections[using])
    for name in ("0001_initial", "0002_guards", "0003_longer_subject"):
        recorder.record_unapplied("guarded", name)
    execute(using, f"DROP TABLE {quote('guarded_complaint')}")
    execute(using, f"DROP TABLE {quote('guarded_ticket')}")
    migrate(using)
    assert warnings(using) == []


def test_a_router_that_keeps_a_table_elsewhere_keeps_its_guard_there(using, settings):
    settings.DATABASE_ROUTERS = [NoBooks()]
    assert not router.allow_migrate_model(using, Ledger)
    drop_by_hand(using, "guarded books")
    migrate(using)
    assert warnings(using) == []
    assert [guard.table for guard in promised_guards(connections[using])] == ["guarded_ticket"]


class NoBooks:
    """Keeps the ledger from every database."""

    def allow_migrate(self, db, app_label, model_name=None, **hints):
        return model_name != "ledger"


@pytest.mark.parametrize("backwards", [False, True])
def test_sqlmigrate_prints_the_statements(using, backwards):
    out = io.StringIO()
    call_command("sqlmigrate", "guarded", "0002", database=using, backwards=backwards, stdout=out, no_color=True)
    verb = "DROP" if backwards else "CREATE"
    triggers = re.findall(rf"{verb} TRIGGER (?:IF EXISTS )?[\"`]([\w ]+)[\"`]", out.getvalue())
    assert sorted(triggers) == ["guarded books_fence_guard", "guarded_ticket_fence_guard"]
    assert "-- Add strict fence guard to ledger" in out.getvalue()


def test_a_database_that_cannot_be_asked_is_a_warning_and_no_traceback(using):
    def fail(*_query):
        raise OperationalError("nobody\nlistens")

    with connections[using].execute_wrapper(fail):
        (message,) = check_guards(None, [using])
        assert check_strict_guards(None, [using]) == []
    assert message.id == "fenced_locks.W012"
    assert message.msg == f"Database '{using}' cannot be asked for its fence guards: nobody listens."
