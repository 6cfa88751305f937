"""Issuer `database`: which connection draws a token, what is refused, and what stays behind. See the contract too."""

import threading

import pytest
from django.apps import apps
from django.db import connection, connections, transaction
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.questioner import NonInteractiveMigrationQuestioner
from django.db.migrations.state import ProjectState
from django.test import TestCase

from fenced_locks import FencedLock, IssuerError, counters, fenced_lock, with_fenced_lock
from fenced_locks.issuers import DatabaseIssuer, get_issuer
from fenced_locks.models import FenceCounter
from tests.app.models import Order
from tests.helpers import run_threads, wait_until
from tests.routers import CountersOn

pytestmark = pytest.mark.usefixtures("r")

KEY = "order:1"
ALL = ["default", "postgres", "mariadb"]
WITH_SECOND = ["postgres", "mariadb"]


def real(alias):
    return pytest.mark.django_db(transaction=True, databases=list({"default", alias}))


@pytest.fixture
def alias(request, settings):
    settings.DATABASE_ROUTERS = [CountersOn(request.param)]
    return request.param


def on(aliases):
    marked = [pytest.param(name, id=name, marks=real(name)) for name in aliases]
    return pytest.mark.parametrize("alias", marked, indirect=True)


def issue(name=KEY):
    return DatabaseIssuer().issue(name)


def guests(alias):
    """Count the connections to this database, as its server sees them: those that were closed a moment longer."""
    by_vendor = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database()",
    }
    with connections[alias].cursor() as cursor:
        cursor.execute(by_vendor[connections[alias].vendor])
        return cursor.fetchone()[0]


@on(ALL)
def test_in_autocommit_it_is_one_statement_on_the_callers_connection(alias, django_assert_num_queries):
    connections[alias].ensure_connection()
    issue()
    with django_assert_num_queries(1, connection=connections[alias]):
        assert issue() == 2
    assert FenceCounter.objects.using(alias).get().token == 2


@on(WITH_SECOND)
def test_inside_a_transaction_it_is_committed_at_once_on_a_second_connection_that_is_closed(
    alias, django_assert_num_queries
):
    issue()
    with transaction.atomic(using=alias):
        with django_assert_num_queries(0, connection=connections[alias]):
            assert issue() == 2
        seen = run_threads(lambda: FenceCounter.objects.using(alias).get().token)
        assert seen == [2]
        with transaction.atomic(using=alias):
            assert issue() == 3
        assert connections[alias].in_atomic_block
        transaction.set_rollback(True, using=alias)
    assert issue() == 4
    wait_until(lambda: guests(alias) == 1)


@on(WITH_SECOND)
def test_a_transaction_that_has_failed_still_gets_a_token(alias):
    with transaction.atomic(using=alias):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias, savepoint=False):
            raise ZeroDivisionError
        assert connections[alias].needs_rollback
        assert [issue(), issue()] == [1, 2]
    assert issue() == 3


@on(WITH_SECOND)
def test_an_open_transaction_that_has_drawn_a_token_keeps_nobody_from_drawing(alias):
    with transaction.atomic(using=alias):
        issue()
        assert run_threads(issue, timeout=10) == [2]


@on(WITH_SECOND)
def test_without_autocommit_it_is_committed_all_the_same(alias):
    transaction.set_autocommit(False, using=alias)
    try:
        assert issue() == 1
        transaction.rollback(using=alias)
    finally:
        transaction.set_autocommit(True, using=alias)
    assert issue() == 2


@on(WITH_SECOND)
def test_a_database_whose_setting_is_without_autocommit(alias, monkeypatch):
    connections[alias].close()
    monkeypatch.setitem(connections[alias].settings_dict, "AUTOCOMMIT", False)
    assert issue() == 1
    connections[alias].close()
    assert issue() == 2
    connections[alias].close()


@on(["default"])
def test_on_sqlite_inside_a_transaction_it_is_refused_with_the_way_out_and_no_lease_is_left(alias, r):
    with transaction.atomic():
        with pytest.raises(IssuerError, match=r"SQLite has one writer at a time.* take the lock first"):
            fenced_lock(KEY, issuer="database").acquire()
        assert r.keys() == []
    with fenced_lock(KEY, issuer="database") as lock, transaction.atomic():
        assert lock.fence_token == 1


@on(["postgres"])
def test_a_transaction_on_another_database_does_not_matter(alias, django_assert_num_queries):
    issue()
    with transaction.atomic(), django_assert_num_queries(1, connection=connections["postgres"]):
        issue()


@pytest.mark.django_db(databases=ALL)
@pytest.mark.parametrize("alias", ALL, indirect=True)
def test_in_a_test_case_it_is_the_test_cases_own_connection(alias, django_assert_num_queries):
    issue()
    with django_assert_num_queries(1, connection=connections[alias]):
        issue()
    with transaction.atomic(using=alias):
        assert issue() == 3


class TestInDjangosTestCase(TestCase):
    def test_the_first_token_is_the_first_of_each_test(self):
        with fenced_lock(KEY, issuer="database") as lock:
            assert lock.fence_token == 1

    def test_and_so_it_is_here(self):
        self.test_the_first_token_is_the_first_of_each_test()
        assert connection.in_atomic_block


@real("default")
def test_from_the_settings_with_lock_decorator_and_row(settings, r):
    settings.FENCED_LOCKS = {"ISSUER": "database"}
    order = Order.objects.create()

    @with_fenced_lock("order:<pk>")
    def confirm(pk, *, fence_token):
        return Order.objects.filter(pk=pk).fenced_update(fence_token, status="confirmed")

    assert confirm(order.pk) == 1
    r.flushall()
    with fenced_lock(f"order:{order.pk}") as lock:
        assert lock.fence_token == 2
        assert Order.objects.filter(pk=order.pk).fenced_update(lock.fence_token, status="sent") == 1
    assert confirm(order.pk) == 1
    order.refresh_from_db()
    assert order.fence_token == 3


@real("default")
def test_names_carry_the_key_prefix(settings):
    settings.FENCED_LOCKS = {"ISSUER": "database", "KEY_PREFIX": "shop:"}
    with fenced_lock(KEY):
        assert FenceCounter.objects.get().resource == "shop:order:1"


@on(ALL)
def test_names_that_differ_have_counters_that_differ(alias):
    names = ["a", "A", "a ", "á", "a\u0301", "\uff41", "😀", "ß", "ss", "a\t", "%s", "a'b\\", "x" * 255]
    assert [issue(name) for name in names] == [1] * len(names)
    assert counters.read_tokens(alias, names) == dict.fromkeys(names, 1)


@on(ALL)
def test_a_name_that_is_too_long_is_refused_before_the_database_sees_it(alias, r, django_assert_num_queries):
    with django_assert_num_queries(0, connection=connections[alias]):
        with pytest.raises(IssuerError, match="names of up to 255 characters, this one has 256"):
            FencedLock(r, "x" * 256, timeout=10, issuer="database").acquire()
    assert r.keys() == []


@on(ALL)
def test_a_missing_table_is_an_error_that_says_what_to_do(alias, r):
    with connections[alias].schema_editor() as editor:
        editor.delete_model(FenceCounter)
    try:
        with pytest.raises(IssuerError, match=f"database '{alias}': its table is not there; .*manage.py migrate"):
            FencedLock(r, KEY, timeout=10, issuer="database").acquire()
        assert r.keys() == []
    finally:
        with connections[alias].schema_editor() as editor:
            editor.create_model(FenceCounter)


@on(ALL)
def test_the_greatest_number_is_followed_by_an_error_not_by_a_smaller_one(alias, r):
    FenceCounter.objects.using(alias).create(resource=KEY, token=2**63 - 1)
    for _ in range(2):
        with pytest.raises(IssuerError):
            FencedLock(r, KEY, timeout=10, issuer="database").acquire()
        assert FenceCounter.objects.using(alias).get().token == 2**63 - 1
    assert r.keys() == []


@on(["mariadb"])
def test_the_statement_for_mysql(alias):
    """MariaDB understands it too."""

    def work():
        return [counters.next_token(connections[alias], "mysql", KEY) for _ in range(4)]

    drawn = run_threads(*[work] * 10)
    assert sorted(token for tokens in drawn for token in tokens) == list(range(1, 41))


@on(["postgres"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_whatever_isolation_the_server_has_been_told_to_use(alias, level):
    def work():
        with connections[alias].cursor() as cursor:
            cursor.execute(f"SET default_transaction_isolation = '{level}'")
        return [issue() for _ in range(20)]

    drawn = run_threads(*[work] * 10)
    assert sorted(token for tokens in drawn for token in tokens) == list(range(1, 201))


@on(["default"])
def test_a_database_that_is_not_supported_is_named(alias, monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    with pytest.raises(IssuerError, match="oracle is not supported; use PostgreSQL"):
        issue()


@on(["default"])
def test_a_database_that_is_busy_for_too_long_is_an_error_and_leaves_no_lease(alias, r):
    begun, end = threading.Event(), threading.Event()

    def writer():
        with transaction.atomic():
            Order.objects.create()
            begun.set()
            end.wait(10)

    def grantee():
        begun.wait(10)
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 20")
        try:
            with pytest.raises(IssuerError, match="database is locked"):
                FencedLock(r, KEY, timeout=10, issuer="database").acquire()
            assert r.keys() == []
        finally:
            end.set()

    run_threads(writer, grantee)


@on(ALL)
def test_counters_are_raised_and_never_lowered(alias):
    issue("there")
    counters.raise_tokens(connections[alias], {"new": 5, "there": 9, "x'; --": 1})
    counters.raise_tokens(connections[alias], {"new": 4, "there": 10})
    assert counters.read_tokens(alias, ["new", "there", "nowhere"]) == {"new": 5, "there": 10}
    assert issue("new") == 6


def test_no_migration_is_missing():
    detector = MigrationAutodetector(
        MigrationLoader(None).project_state(),
        ProjectState.from_apps(apps),
        NonInteractiveMigrationQuestioner(specified_apps={"fenced_locks"}, dry_run=True),
    )
    assert "fenced_locks" not in detector.changes(graph=MigrationLoader(None).graph)


def test_it_is_chosen_by_name():
    assert isinstance(get_issuer("database"), DatabaseIssuer)
    assert get_issuer("database").issued_at(5) is None
