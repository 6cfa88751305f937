"""The admin's page "Fenced locks": everything to see with the one permission, leases to free with the other."""

from __future__ import annotations

import re

import pytest
import redis
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import Client
from django.urls import path, resolve, reverse

from fenced_locks import FencedLock
from fenced_locks.admin import LockAdmin
from fenced_locks.admin_paths import quote, unquote
from fenced_locks.models import Lock
from tests.app.models import Order

pytestmark = pytest.mark.django_db

LIST = "/admin/fenced_locks/lock/"
RELEASE = f"{LIST}release/"


def page_of(resource):
    name = resource if isinstance(resource, bytes) else resource.encode()
    return f"{LIST}{quote(name)}/change/"


def text_of(response):
    """Return what a reader sees, on one line."""
    text = re.sub(r"<(script|style|head).*?</\1>|<[^>]*>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(text.replace("&quot;", '"').replace("&#x27;", "'").split())


def rows_of(response):
    return re.findall(r'field-resource"><a href="[^"]*">([^<]*)</a>', response.content.decode())


def following(response):
    found = re.search(r'<a href="([^"]*)" class="fence-next">', response.content.decode())
    return found and found[1].replace("&amp;", "&")


def user_with(*codenames):
    return user_named("ops", *codenames)


def user_named(name, *codenames):
    user = User.objects.create(username=name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client(enforce_csrf_checks=False)
    client.force_login(user)
    return client


@pytest.fixture
def viewer(r):
    return user_with("view_lock")


@pytest.fixture
def operator(r):
    return user_with("view_lock", "release_lock")


@pytest.fixture
def held(r):
    with FencedLock(r, "order:1", timeout=30, raise_on_release_error=False) as lock:
        yield lock


def lease_of(lock):
    return f"{quote(lock.name.encode())}.{quote(lock.owner_id.encode())}"


class TestTheModel:
    def test_there_is_no_table_but_two_permissions(self):
        assert Lock._meta.db_table not in connection.introspection.table_names()
        codenames = Permission.objects.filter(content_type__model="lock", content_type__app_label="fenced_locks")
        assert set(codenames.values_list("codename", flat=True)) == {"view_lock", "release_lock"}

    def test_what_asks_every_model_meets_no_missing_table(self, capsys):
        call_command("dumpdata", "fenced_locks")
        call_command("dumpdata", "fenced_locks", use_base_manager=True)
        assert "".join(capsys.readouterr().out.split()) == "[][]"
        assert not Lock.objects.exists()

    def test_the_migrations_are_complete(self):
        call_command("makemigrations", "fenced_locks", check_changes=True, dry_run=True, verbosity=0)


class TestPermissions:
    def test_without_one_there_is_nothing_to_see(self, held):
        client = user_with()
        for address in (LIST, page_of("order:1"), RELEASE):
            assert client.get(address).status_code == 403
        assert "Fenced locks" not in text_of(client.get("/admin/"))

    def test_who_may_view_finds_the_page_in_the_index_and_cannot_release(self, viewer, held):
        assert f'href="{LIST}"' in viewer.get("/admin/").content.decode()
        for address in (LIST, page_of("order:1")):
            assert "Release" not in text_of(viewer.get(address))
        assert viewer.get(f"{RELEASE}?name=order_3A1").status_code == 403
        assert viewer.post(RELEASE, {"confirmed": "1", "lease": lease_of(held)}).status_code == 403
        assert held.owned()

    def test_release_alone_is_not_enough_to_see(self, held):
        client = user_with("release_lock")
        assert client.get(LIST).status_code == 403
        assert client.post(RELEASE, {"confirmed": "1", "lease": lease_of(held)}).status_code == 403

    def test_a_release_needs_a_token_against_forgery(self, operator, held):
        strict = Client(enforce_csrf_checks=True)
        strict.cookies = operator.cookies
        assert strict.post(RELEASE, {"confirmed": "1", "lease": lease_of(held)}).status_code == 403
        assert held.owned()

    def test_only_a_post_releases(self, operator, held):
        operator.get(RELEASE, {"confirmed": "1", "lease": lease_of(held), "name": "order_3A1"})
        assert operator.post(LIST, {"confirmed": "1", "lease": lease_of(held)}).status_code == 405
        assert held.owned()


class TestList:
    def test_what_is_held_and_what_is_free(self, viewer, held, r):
        with FencedLock(r, "stock:7", timeout=30):
            pass
        response = viewer.get(LIST)
        assert rows_of(response) == ["order:1", "stock:7"]
        text = text_of(response)
        assert re.search(rf"order:1 held {held.owner_id} (29|30)\.\d s {held.fence_token} 20\d\d-", text)
        assert re.search(r"stock:7 free \d{16} 20\d\d-", text)
        assert rows_of(viewer.get(LIST, {"held": "1"})) == ["order:1"]
        assert rows_of(viewer.get(LIST, {"q": "stock:*"})) == ["stock:7"]

    def test_waiters_are_counted_without_the_mark_of_a_run(self, viewer, held, r):
        r.zadd("queue:{order:1}", {"": -1764000000000, "a": 1764000000000000, "b": 1764000000000001})
        assert re.search(r'data-label="Waiters">2<', viewer.get(LIST).content.decode())

    def test_a_whole_name_finds_a_lock_and_part_of_one_is_helped(self, viewer, held):
        assert rows_of(viewer.get(LIST, {"q": "order:1"})) == ["order:1"]
        response = viewer.get(LIST, {"q": "rder"})
        assert rows_of(response) == []
        assert 'href="?q=%2Arder%2A"' in response.content.decode()

    def test_parts_follow_each_other_until_all_were_shown(self, viewer, r):
        r.mset({f"fence:{{order:{number:04}}}": number for number in range(1000)})
        r.mset({f"noise:{number}": number for number in range(2000)})
        seen, address = set(), LIST
        for _ in range(30):
            response = viewer.get(address)
            rows = rows_of(response)
            assert rows == sorted(rows)
            assert len(rows) < 1000
            seen |= set(rows)
            if not following(response):
                break
            address = LIST + following(response)
        assert len(seen) == 1000

    def test_one_part_costs_the_server_no_more_than_a_bound(self, viewer, r, monkeypatch):
        monkeypatch.setattr("fenced_locks.resources._CALLS", 3)
        r.mset({f"fence:{{order:{number}}}": number for number in range(5000)})
        r.config_resetstat()
        response = viewer.get(LIST, {"q": "stock:*"})
        assert r.info("commandstats")["cmdstat_scan"]["calls"] == 3
        assert "There is more" in text_of(response)
        assert "q=stock" in following(response)

    def test_nor_does_it_take_longer_where_the_server_is_slow(
        self, viewer, r, make_proxy, redis_url, settings, monkeypatch
    ):
        monkeypatch.setattr("fenced_locks.resources._SECONDS", 0.3)
        r.mset({f"fence:{{order:{number}}}": number for number in range(5000)})
        proxy = make_proxy(redis_url)
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": proxy.url}}
        proxy.delay_reply(0.1, "SCAN", times=50)
        response = viewer.get(LIST, {"q": "stock:*"})
        assert 1 < len(proxy.calls("SCAN")) < 6
        assert "There is more" in text_of(response)

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_times_are_those_of_the_time_zone(self, viewer, r, settings, use_tz):
        settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
        r.set("fence:{order:1}", 1764424512345678)
        for address in (LIST, page_of("order:1")):
            assert "2025-11-29 22:55:12" in text_of(viewer.get(address))

    @pytest.mark.parametrize(
        "query", [{"q": "["}, {"cursor": "x"}, {"cursor": "-1"}, {"cursor": "9" * 30}, {"q": "fence:x"}]
    )
    def test_a_wrong_question_has_an_answer(self, viewer, query):
        response = viewer.get(LIST, query)
        assert response.status_code == 200
        assert "errornote" in response.content.decode()


class TestOneResource:
    def test_everything_that_is_known(self, viewer, held):
        text = text_of(viewer.get(page_of("order:1")))
        assert f"Owner: {held.owner_id}" in text
        assert f"Last token: {held.fence_token}" in text
        assert re.search(r"State: held .* Lease left: (29|30)\.\d s .* Waiters: 0", text)

    def test_rows_of_registered_models_that_the_user_may_see(self, settings, held, r):
        settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>"}}
        Order.objects.create(pk=1)
        Order.objects.filter(pk=1).fenced_update(held.fence_token)
        assert f"order 1 {held.fence_token} the last token" in text_of(
            user_with("view_lock", "view_order").get(page_of("order:1"))
        )

    def test_and_not_of_others(self, settings, held, viewer):
        settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>"}}
        Order.objects.create(pk=1)
        assert "order 1" not in text_of(viewer.get(page_of("order:1")))

    def test_a_resource_that_nobody_knows_is_free(self, viewer, r):
        assert "State: free" in text_of(viewer.get(page_of("order:404")))

    def test_a_key_that_is_no_lock_is_not_shown(self, viewer, r):
        r.set("session:7", "a secret of somebody else")
        response = viewer.get(page_of("session:7"))
        assert "secret" not in text_of(response)
        assert "no owner id" in text_of(response)
        assert "secret" not in text_of(viewer.get(LIST, {"q": "session:7"}))

    def test_a_lock_that_is_handed_over_is_told_in_words(self, operator, r):
        r.mset({"fence:{order:1}": 5, "order:1": "ticket:web:1:abc:web:2:def"})
        for address in (LIST, page_of("order:1"), f"{RELEASE}?name=order_3A1"):
            response = operator.get(address)
            assert "about to be taken by a waiter" in text_of(response)
            assert "ticket:" not in response.content.decode()
            assert 'name="lease"' not in response.content.decode()

    @pytest.mark.parametrize("name", ["fence:x", "a}b", ""])
    def test_a_name_that_no_lock_can_have_is_not_found(self, viewer, name):
        assert viewer.get(page_of(name) if name else f"{LIST}_/change/").status_code in (404, 200)


NAMES = [
    "<script>alert(1)</script>", "a/b/../c", "..", ".", "straße ❄", "a?b#c&d=e%2F", 'q"uo\'te', "_41", "add", "release",
    "tab\there", "new\nline", b"caf\xe9", b"\xff\xfe", " ", "x" * 300, "{7}:x", "nul\0", "\u202eevil",
]  # fmt: skip


class TestNames:
    @pytest.mark.parametrize("name", NAMES, ids=repr)
    def test_any_name_can_be_seen_and_released(self, operator, client_factory, r, name):
        raw = name if isinstance(name, bytes) else name.encode()
        lock = FencedLock(r, name, timeout=30)
        lock.acquire()
        response = operator.get(LIST)
        assert "<script>alert" not in response.content.decode()
        (address,) = re.findall(r'field-resource"><a href="([^"]*)"', response.content.decode())
        assert address == page_of(raw)
        assert f"Owner: {lock.owner_id}" in text_of(operator.get(address))
        operator.post(RELEASE, {"confirmed": "1", "lease": f"{quote(raw)}.{quote(lock.owner_id.encode())}"})
        assert not r.exists(name)
        assert LogEntry.objects.count() == 1

    @pytest.mark.parametrize("name", NAMES, ids=repr)
    def test_quoting_is_undone(self, name):
        raw = name if isinstance(name, bytes) else name.encode()
        assert re.fullmatch("[A-Za-z0-9_-]+", quote(raw))
        assert unquote(quote(raw)) == raw

    def test_the_link_in_the_log_leads_back(self, operator, held):
        operator.post(RELEASE, {"confirmed": "1", "lease": lease_of(held)})
        address = LogEntry.objects.get().get_admin_url()
        assert "Resource: order:1" in text_of(operator.get(address))


class TestRelease:
    def test_the_confirmation_names_owner_and_lease(self, operator, held):
        text = text_of(operator.post(RELEASE, {"name": ["order_3A1"]}))
        assert re.search(rf"order:1 : held by {held.owner_id} , lease left: (29|30)\.\d s", text)
        assert "as soon as the next holder has written the row" in text
        assert held.owned()

    def test_what_is_promised_depends_on_the_setting(self, operator, held, settings):
        settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>"}}
        assert "to the rows of app.Order that belong to the resource are refused at once" in text_of(
            operator.get(f"{RELEASE}?name=order_3A1")
        )

    def test_a_release_is_done_said_and_logged(self, operator, held, settings):
        settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>"}}
        Order.objects.create(pk=1)
        owner, token = held.owner_id, held.fence_token
        response = operator.post(RELEASE, {"confirmed": "1", "lease": lease_of(held)}, follow=True)
        assert re.search(rf"Released order:1, held by {owner} with (29|30)\.\d s left\. 1 row", text_of(response))
        assert "order:1 free" in text_of(response)
        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.object_repr, entry.user.username) == ("order:1", "order:1", "ops")
        assert owner in entry.get_change_message()
        assert not Order.objects.filter(pk=1).fenced_update(token)

    @pytest.mark.parametrize("name", ["order:1", "a b/ü_3A%", b"\xff\n<b>"])
    def test_the_history_of_a_resource_says_who_took_it_from_whom(self, operator, r, name):
        lock = FencedLock(r, name, timeout=30)
        lock.acquire()
        lease = f"{quote(r.keys('fence:*')[0][7:-1])}.{quote(lock.owner_id.encode())}"
        operator.post(RELEASE, {"confirmed": "1", "lease": lease})
        detail = operator.get(page_of(name))
        (link,) = re.findall(r'<a href="([^"]*)" class="historylink">', detail.content.decode())
        text = text_of(operator.get(link))
        assert re.search(rf"ops Released .*, held by {lock.owner_id} with (29|30)", text)
        assert "1 entry" in text
        assert operator.get(page_of("order:2").replace("change", "history")).status_code == 200
        assert Client().get(link).status_code == 302
        assert user_named("nobody").get(link).status_code == 403

    def test_without_a_lease_to_free_there_is_no_button(self, operator, held):
        assert "Release selected" in text_of(operator.get(LIST))
        held.release()
        assert "Release selected" not in text_of(operator.get(LIST))

    def test_the_owner_is_the_one_that_was_confirmed(self, operator, held, r):
        lease = lease_of(held)
        held.release()
        with FencedLock(r, "order:1", timeout=30) as newer:
            text = text_of(operator.post(RELEASE, {"confirmed": "1", "lease": lease}, follow=True))
            assert "Not released: order:1" in text
            assert newer.owner_id in text
            assert newer.owned()
        assert not LogEntry.objects.exists()

    def test_several_at_once(self, operator, r):
        locks = [FencedLock(r, f"order:{number}", timeout=30) for number in range(3)]
        for lock in locks:
            lock.acquire()
        operator.post(RELEASE, {"confirmed": "1", "lease": [lease_of(lock) for lock in locks[:2]]})
        assert [lock.owned() for lock in locks] == [False, False, True]
        assert LogEntry.objects.count() == 2

    def test_one_that_names_no_lease_does_not_keep_the_others(self, operator, held):
        leases = ["fence_3Ax.y", ".", "order_3A2.web", lease_of(held)]
        text = text_of(operator.post(RELEASE, {"confirmed": "1", "lease": leases}, follow=True))
        assert (text.count("Not released"), text.count("Released order:1, ")) == (3, 1)
        assert not held.owned()

    def test_nor_does_a_log_that_cannot_be_written(self, operator, held, r):
        def fail(execute, sql, *query):
            if "django_admin_log" in sql:
                raise OperationalError("disk full")
            return execute(sql, *query)

        with FencedLock(r, "order:2", timeout=30, raise_on_release_error=False) as other:
            with connection.execute_wrapper(fail):
                leases = {"confirmed": "1", "lease": [lease_of(held), lease_of(other)]}
                text = text_of(operator.post(RELEASE, leases, follow=True))
            assert text.count("The log of the admin could not be written: disk full.") == 2
            assert not r.exists("order:1", "order:2")

    def test_a_server_that_takes_no_writes_is_told(self, operator, own_server, settings):
        url = own_server().url
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
        with redis.Redis.from_url(url) as replica:
            replica.set("order:1", "web:1")
            replica.replicaof("127.0.0.1", 1)
            text = text_of(operator.post(RELEASE, {"confirmed": "1", "lease": "order_3A1.web_3A1"}, follow=True))
        assert re.search(r"Not released: order:1: Redis behind cache alias 'default' says: .*replica", text)

    @pytest.mark.parametrize("lease", ["", "order_3A1", "order_3A1.", "order_3A1.ticket_3Ax", ".", "fence_3Ax.y"])
    def test_what_names_no_lease_frees_none(self, operator, held, r, lease):
        assert operator.post(RELEASE, {"confirmed": "1", "lease": lease}).status_code in (302, 404)
        assert held.owned()

    def test_nothing_selected(self, operator):
        assert "Select what is to be released." in text_of(operator.post(RELEASE, follow=True))

    def test_it_is_not_part_of_a_transaction_of_the_request(self):
        assert "default" in resolve(reverse("admin:fenced_locks_lock_release")).func._non_atomic_requests


own_site = admin.AdminSite(name="ops")
own_site.register(Lock, LockAdmin)
urlpatterns = [path("ops/", own_site.urls), path("admin/", admin.site.urls)]


def test_in_a_site_of_its_own_no_link_leads_to_the_other(operator, held, settings):
    settings.ROOT_URLCONF = __name__
    for address in (LIST, page_of("order:1"), f"{RELEASE}?name=order_3A1", "/admin/"):
        page = operator.get(address.replace("/admin/", "/ops/")).content.decode()
        assert "/ops/fenced_locks/lock/" in page
        assert '"/admin/' not in page
    answer = operator.post(RELEASE.replace("/admin/", "/ops/"), {"confirmed": "1", "lease": lease_of(held)})
    assert answer.headers["Location"] == "/ops/fenced_locks/lock/"
    assert not held.owned()


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_numbers_have_separators_but_for_tokens(operator, r, settings, language):
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = language, True
    r.zadd("queue:{order:1}", {f"web:{number}": 1764000000000000 + number for number in range(1500)})
    r.mset({"fence:{order:1}": 1764424512345678, "order:1": "web:1:x"})
    for address in (LIST, page_of("order:1")):
        assert "1764424512345678" in text_of(operator.get(address))


class TestWithoutAServer:
    @pytest.fixture
    def down(self, settings):
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
        }

    @pytest.mark.usefixtures("down")
    def test_each_page_says_so(self, operator):
        for address in (LIST, page_of("order:1"), f"{RELEASE}?name=order_3A1"):
            response = operator.get(address)
            assert response.status_code == 200
            assert "Redis behind cache alias 'default' cannot be read" in text_of(response)
            assert "0 fenced locks" not in text_of(response)
        answer = operator.post(RELEASE, {"confirmed": "1", "lease": "order_3A1.web_3A1"}, follow=True)
        assert "Not released: order:1" in text_of(answer)
        assert not LogEntry.objects.exists()

    @pytest.mark.usefixtures("down")
    def test_it_is_not_asked_for_each_of_many(self, operator):
        leases = [f"order_3A{number}.web_3A1" for number in range(20)]
        text = text_of(operator.post(RELEASE, {"confirmed": "1", "lease": leases}, follow=True))
        assert "Not released: order:0: Redis behind cache alias 'default'" in text
        assert "Not released, since not tried: 19 more." in text
        assert "order:1:" not in text

    @pytest.mark.parametrize("setting", [{"USING": "nowhere"}, {"ISSUER": "clok"}, {"TIMEOUT": 1, "USING": 7}])
    def test_wrong_settings_are_told_too(self, operator, settings, setting):
        settings.FENCED_LOCKS = setting
        response = operator.get(LIST)
        assert response.status_code == 200
        assert "errornote" in response.content.decode()

    def test_a_server_that_goes_away_between_question_and_answer(self, operator, held, make_proxy, redis_url, settings):
        proxy = make_proxy(redis_url)
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": proxy.url}}
        assert operator.get(f"{RELEASE}?name=order_3A1").status_code == 200
        lease = lease_of(held)
        proxy.close()
        assert "Not released: order:1" in text_of(
            operator.post(RELEASE, {"confirmed": "1", "lease": lease}, follow=True)
        )
        assert isinstance(held.redis, redis.Redis)
        assert held.owned()
