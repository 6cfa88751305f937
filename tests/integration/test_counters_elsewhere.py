"""With the issuer `database` the resources are listed from its table, with their leases from Redis."""

from __future__ import annotations

import io
import re

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import Client

from fenced_locks import FencedLock
from fenced_locks.inspection import read_pages
from fenced_locks.issuers import DatabaseIssuer, ExternalIssuer
from fenced_locks.models import FenceCounter
from fenced_locks.resources import Reader
from tests.routers import CountersOn

LIST = "/admin/fenced_locks/lock/"
ALL = ["default", "postgres", "mariadb"]
NAMES = ["order:1", "order:2", "Order:1", "order:ä", "order%:1", "order_:1", "orders", "stock:7", "straße ❄", "{7}:x"]


def run(*arguments, **options):
    """Return the exit code and what was written."""
    out = io.StringIO()
    try:
        call_command(*arguments, stdout=out, stderr=out, **options)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def rows_of(response):
    return re.findall(r'field-resource"><a href="[^"]*">([^<]*)</a>', response.content.decode())


@pytest.fixture
def admin():
    client = Client()
    client.force_login(User.objects.create(username="ops", is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def counters(r, settings):
    settings.FENCED_LOCKS = {"ISSUER": "database"}
    FenceCounter.objects.bulk_create(FenceCounter(resource=name, token=5) for name in NAMES)
    # From another issuer, before: its number is not the last token.
    r.set("fence:{order:1}", 99)
    with FencedLock(r, "order:1", timeout=30, issuer="database", raise_on_release_error=False) as lock:
        yield lock


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("alias", [pytest.param(a, marks=pytest.mark.django_db(databases={"default", a})) for a in ALL])
class TestTheTable:
    @pytest.fixture(autouse=True)
    def _rows(self, alias, settings):
        settings.DATABASE_ROUTERS = [CountersOn(alias)]
        FenceCounter.objects.using(alias).bulk_create(FenceCounter(resource=name, token=5) for name in NAMES)

    @pytest.mark.parametrize("number", [1, 3, 10, 100])
    def test_each_counter_comes_once_whatever_the_size_of_the_parts(self, alias, number):
        found, after = [], ""
        while part := DatabaseIssuer().counters_after(after, number):
            found += part
            after = part[-1][0]
        assert sorted(found) == sorted((name, 5) for name in NAMES)

    @pytest.mark.parametrize(
        "start", ["order:", "order%", "order_", "o", "stock:7", "stra", "{7}", "nothing", "\U0010ffff"]
    )
    def test_those_that_begin_so_are_found_and_no_others(self, alias, start):
        wanted = [name for name in NAMES if name.startswith(start)]
        assert sorted(name for name, _ in DatabaseIssuer().counters_after("", 100, start)) == sorted(wanted)

    @pytest.mark.parametrize("pattern", [None, "order:*", "order:1", "*:1", "?rder:1", "order[%_]*", "stra*❄", "x*"])
    def test_patterns(self, alias, r, pattern):
        resources = []
        for page in read_pages(r, pattern, issuer=DatabaseIssuer(), page_size=2):
            resources += page.resources
        listing = Reader(r, DatabaseIssuer()).find(pattern)
        assert sorted(resources) == sorted(each.status.resource for each in listing.resources)
        expected = {
            None: NAMES, "order:*": ["order:1", "order:2", "order:ä"], "order:1": ["order:1"],
            "*:1": ["order:1", "Order:1", "order%:1", "order_:1"], "?rder:1": ["order:1", "Order:1"],
            "order[%_]*": ["order%:1", "order_:1"], "stra*❄": ["straße ❄"], "x*": [],
        }  # fmt: skip
        assert sorted(resources) == sorted(expected[pattern])


@pytest.mark.django_db
class TestCommands:
    def test_the_status(self, counters):
        code, out = run("fence_status", "order:*")
        assert code == 0
        assert re.search(rf"order:1 +6 +held +\d+\.\d s +{counters.owner_id}\n", out)
        assert re.search(r"order:2 +5 +free\n", out)
        assert out.endswith("3 counters: 1 held, 2 free.\n")
        assert "outside" not in out

    def test_what_is_held(self, counters):
        assert "10 counters: 1 held, 9 free." in run("fence_status", held=True)[1]

    def test_one_name(self, counters):
        assert "1 counter: 1 held, 0 free." in run("fence_status", "order:1")[1]
        assert "No counters match 'order:404'" in run("fence_status", "order:404")[1]

    def test_under_the_prefix(self, counters, settings):
        settings.FENCED_LOCKS = {"ISSUER": "database", "KEY_PREFIX": "order:"}
        assert "3 counters: 1 held, 2 free." in run("fence_status")[1]
        assert run("fence_release", pattern="[0-9]", yes=True)[1].endswith("\n1 was freed.\n")

    def test_a_release_by_pattern_and_by_owner(self, counters, r):
        with FencedLock(r, "stock:7", timeout=30, issuer="database", raise_on_release_error=False):
            code, out = run("fence_release", pattern="stock:*", yes=True)
            assert (code, out.endswith("stock:7 was freed.\n")) == (0, True)
        assert counters.owned()
        assert run("fence_release", owner="*", yes=True)[1].endswith("order:1 was freed.\n")
        assert not r.exists("order:1")


@pytest.mark.django_db
class TestTheAdmin:
    def test_the_list(self, counters, admin):
        response = admin.get(LIST)
        assert rows_of(response) == sorted(NAMES, key=str.encode)
        assert "outside Redis" not in response.content.decode()
        assert rows_of(admin.get(LIST, {"held": "1"})) == ["order:1"]
        assert rows_of(admin.get(LIST, {"q": "stock:*"})) == ["stock:7"]

    def test_parts_follow_each_other_until_all_were_shown(self, counters, admin):
        FenceCounter.objects.bulk_create(FenceCounter(resource=f"a&b/ä\n{n:04}", token=1) for n in range(500))
        seen, address = [], LIST
        while address:
            response = admin.get(address)
            rows = rows_of(response)
            assert len(rows) <= 100
            seen += rows
            following = re.search(r'<a href="([^"]*)" class="fence-next">', response.content.decode())
            address = following and LIST + following[1].replace("&amp;", "&")
        assert len(seen) == len(set(seen)) == 510


class Listless(ExternalIssuer):
    """Does what it must, and no more."""

    name = "listless"

    def issue(self, resource):
        return 1


class Broken(Listless):
    """Fails in its own way."""

    name = "broken"

    def last_tokens(self, resources):
        raise LookupError("no quorum")

    def counters_after(self, resource, number, start=""):
        raise LookupError("no quorum")


@pytest.mark.django_db
class TestTrouble:
    def test_an_issuer_that_lists_nothing(self, r, settings, admin):
        settings.FENCED_LOCKS = {"ISSUER": Listless()}
        told = "The issuer 'listless' keeps its counters outside Redis: its resources are not among these."
        assert run("fence_status")[1].splitlines()[1] == told
        code, out = run("fence_release", pattern="*", yes=True)
        assert (code, "name the resources" in out) == (2, True)
        assert "outside Redis, so nothing can be listed" in admin.get(LIST).content.decode()

    def test_one_that_cannot_be_asked_is_told_in_a_line(self, r, settings, admin):
        settings.FENCED_LOCKS = {"ISSUER": Broken()}
        said = "the issuer 'broken' cannot be asked: LookupError: no quorum"
        for command in (["fence_status"], ["fence_status", "order:1"], ["fence_release", "order:1"]):
            assert run(*command) == (3, said)
        assert run("fence_release", owner="*") == (3, said)
        for address in (LIST, f"{LIST}?q=order:1", f"{LIST}order_3A1/change/", f"{LIST}release/?name=order_3A1"):
            assert said in admin.get(address).content.decode().replace("&#x27;", "'")

    def test_a_database_that_is_down_is_told_in_a_line(self, counters, admin):
        def fail(execute, sql, *query):
            if "fenced_locks_fencecounter" in sql:
                raise OperationalError("server closed the connection")
            return execute(sql, *query)

        said = "from database 'default': server closed the connection"
        with connection.execute_wrapper(fail):
            for command in (["fence_status"], ["fence_status", "order:1"], ["fence_release", "order:1"]):
                code, out = run(*command)
                assert (code, said in out, "\n" in out.strip()) == (3, True, False)
            for address in (LIST, f"{LIST}order_3A1/change/"):
                assert said in admin.get(address).content.decode().replace("&#x27;", "'")

    @pytest.mark.parametrize("cursor", ["\0", "x" * 5000, "\U0010ffff"])
    def test_a_wrong_cursor_has_an_answer(self, counters, admin, cursor):
        assert admin.get(LIST, {"cursor": cursor}).status_code == 200
