"""The example shop: its views hold locks and write under tokens, its admin only looks, and `runserver` just works."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from config import settings as shop_settings
from django.conf import LazySettings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from shop import views
from shop.models import Order, Stock
from shop.seed import seed

from fenced_locks import FencedLock
from tests.helpers import run_threads, wait_until

MANAGE = shop_settings.BASE_DIR / "manage.py"
WRITES = [
    ("/order/1001/confirm", "order:1001"),
    ("/order/1001/confirm-slowly", "order:1001"),
    ("/order/1001/cancel", "order:1001"),
    ("/stock/lamp/sell", "stock:lamp"),
    ("/stock/lamp/restock", "stock:lamp"),
]
# Greater than any token of our time, still one that a lock could issue.
NEWER_TOKEN = 2**53 - 1


@pytest.fixture
def shop(settings: LazySettings, r: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shop as its own settings have it, on the tests' servers, with work that takes no time."""
    for name in ("FENCED_LOCKS", "MIDDLEWARE", "ROOT_URLCONF", "STATIC_URL"):
        setattr(settings, name, getattr(shop_settings, name))
    settings.FENCED_LOCKS = {**shop_settings.FENCED_LOCKS, "BLOCKING_TIMEOUT": 0.05}
    monkeypatch.setattr(views, "SLOW_WORK", 0)
    seed()


def state() -> list[object]:
    """Return everything that the shop has stored."""
    return [*Order.objects.values_list(), *Stock.objects.values_list()]


@pytest.mark.django_db
@pytest.mark.usefixtures("shop")
class TestViews:
    @pytest.mark.parametrize(("path", "resource"), WRITES)
    def test_a_write_leaves_its_token_and_no_lease(
        self, client: Client, r: redis.Redis, path: str, resource: str
    ) -> None:
        before = state()
        assert client.post(path).status_code == 302
        changed = [row for row in (*Order.objects.all(), *Stock.objects.all()) if row.fence_token]
        assert [row.fence_token for row in changed] == [int(r.get(f"fence:{{{resource}}}"))]
        assert not r.exists(resource)
        assert state() != before

    def test_the_next_write_has_a_greater_token(self, client: Client) -> None:
        tokens = []
        for path in ("/order/1001/confirm", "/order/1001/cancel"):
            client.post(path)
            tokens.append(Order.objects.get(pk=1001).fence_token)
        assert 0 < tokens[0] < tokens[1]

    @pytest.mark.parametrize(("path", "resource"), WRITES)
    def test_a_busy_row_answers_423(self, client: Client, r: redis.Redis, path: str, resource: str) -> None:
        before = state()
        with FencedLock(r, resource, timeout=30):
            response = client.post(path)
        assert response.status_code == 423
        assert 1 <= int(response["Retry-After"]) <= 30
        assert state() == before

    @pytest.mark.parametrize(("path", "resource"), WRITES)
    def test_a_stale_write_answers_409(self, client: Client, path: str, resource: str) -> None:
        Order.objects.filter(pk=1001).fenced_update(NEWER_TOKEN, customer="the newer writer")
        Stock.objects.filter(sku="lamp").fenced_update(NEWER_TOKEN, name="the newer writer")
        before = state()
        assert client.post(path).status_code == 409
        assert state() == before

    @pytest.mark.parametrize("path", ["/order/1/confirm", "/order/1/cancel", "/stock/sofa/sell", "/stock/sofa/restock"])
    def test_a_row_that_does_not_exist_answers_404(self, client: Client, path: str) -> None:
        assert client.post(path).status_code == 404

    @pytest.mark.parametrize(("path", "resource"), WRITES)
    def test_reading_takes_no_lock(self, client: Client, r: redis.Redis, path: str, resource: str) -> None:
        assert client.get(path).status_code == 405
        assert client.get("/").status_code == 200
        assert r.dbsize() == 0

    def test_a_cancelled_order_is_not_confirmed(self, client: Client) -> None:
        client.post("/order/1001/cancel")
        before = state()
        assert "Order 1001 is cancelled." in client.post("/order/1001/confirm", follow=True).text
        assert state() == before

    def test_stock_ends_at_nothing(self, client: Client) -> None:
        for _ in range(3):
            client.post("/stock/lamp/sell")
        assert "Desk lamp is sold out." in client.post("/stock/lamp/sell", follow=True).text
        assert Stock.objects.get(sku="lamp").quantity == 0

    def test_the_index_shows_rows_tokens_and_leases(self, client: Client, r: redis.Redis) -> None:
        client.post("/stock/lamp/restock")
        with FencedLock(r, "order:1003", timeout=30):
            page = client.get("/").text
        assert str(Stock.objects.get(sku="lamp").fence_token) in page
        assert page.count("s left") == 1
        for name in ("Ada Lovelace", "Alan Turing", "Notebook"):
            assert name in page

    def test_every_button_carries_a_csrf_token(self) -> None:
        client = Client(enforce_csrf_checks=True)
        forms = re.findall(r'<form method="post" action="(.+?)".*?>(.*?)</form>', client.get("/").text)
        assert len(forms) == 3 * Order.objects.count() + 2 * Stock.objects.count()
        for path, form in forms:
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
            assert token is not None
            assert client.post(path).status_code == 403
            assert client.post(path, {"csrfmiddlewaretoken": token[1]}).status_code == 302


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("shop")
def test_a_view_that_outlives_its_lease_is_refused(
    client: Client, r: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try-out of the index page: the slow view's lease ends, another request cancels, the slow write comes late."""

    def lease_ends_and_another_request_cancels() -> None:
        assert r.delete("order:1003") == 1
        [response] = run_threads(lambda: Client().post("/order/1003/cancel"))
        assert response.status_code == 302

    monkeypatch.setattr(views, "slow_work", lease_ends_and_another_request_cancels)
    assert client.post("/order/1003/confirm-slowly").status_code == 409
    order = Order.objects.get(pk=1003)
    assert order.status == Order.Status.CANCELLED
    assert order.fence_token == int(r.get("fence:{order:1003}"))


@pytest.mark.django_db
@pytest.mark.usefixtures("shop")
class TestAdmin:
    @pytest.fixture(autouse=True)
    def _logged_in(self, client: Client) -> None:
        client.force_login(get_user_model().objects.create_superuser("admin"))

    @pytest.mark.parametrize("model", ["order", "stock"])
    def test_shows_tokens(self, client: Client, model: str) -> None:
        Order.objects.filter(pk=1001).fenced_update(4711, status="confirmed")
        Stock.objects.filter(sku="lamp").fenced_update(4711, quantity=1)
        assert "4711" in client.get(f"/admin/shop/{model}/").text

    def test_does_not_write(self, client: Client) -> None:
        order = "/admin/shop/order/1001/"
        assert client.get(f"{order}change/").status_code == 200
        for path in (f"{order}change/", f"{order}delete/", "/admin/shop/order/add/"):
            assert client.post(path, {"status": "confirmed"}).status_code == 403


@pytest.mark.django_db
@pytest.mark.usefixtures("shop")
def test_seeding_again_changes_nothing() -> None:
    Order.objects.filter(pk=1001).fenced_update(1, status="cancelled")
    before = state()
    seed()
    assert state() == before


@pytest.mark.django_db
def test_no_migration_of_the_shop_is_missing() -> None:
    call_command("makemigrations", "shop", check=True, dry_run=True, verbosity=0)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A fresh machine's: no server is named, and the database does not exist yet."""
    ours = {"SHOP_DATABASE": str(tmp_path / "shop.sqlite3"), "DJANGO_SETTINGS_MODULE": "config.settings"}
    return {name: value for name, value in os.environ.items() if name != "REDIS_URL"} | ours


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a management command of the shop in a process of its own."""
    command = [sys.executable, str(MANAGE), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_its_settings_pass_the_system_checks(environment: dict[str, str], redis_url: str) -> None:
    checked = manage({**environment, "REDIS_URL": redis_url}, "check", "--fail-level", "WARNING")
    assert checked.returncode == 0, checked.stderr


@pytest.fixture
def runserver(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`manage.py runserver` on a fresh machine, with its reloader: the process and the address of the shop."""
    port = _free_port()
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), "runserver", str(port)],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_runserver_just_works_and_ends_its_server(
    runserver: tuple[subprocess.Popen[bytes], str], environment: dict[str, str]
) -> None:
    process, address = runserver
    visitor = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    page = wait_until(lambda: _page(visitor, address), timeout=60)
    assert "Ada Lovelace" in page

    [server] = wait_until(lambda: _redis_servers_of(process.pid))
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token is not None
    form = urllib.parse.urlencode({"csrfmiddlewaretoken": token[1]}).encode()
    assert visitor.open(f"{address}/order/1002/cancel", form, timeout=10).status == 200
    status = manage(environment, "fence_status")
    assert "order:1002" in status.stdout, status.stderr

    process.terminate()
    process.wait(20)
    wait_until(lambda: server not in _processes())
    assert sorted(path.name for path in Path(environment["SHOP_DATABASE"]).parent.iterdir()) == ["shop.sqlite3"]


def _page(visitor: urllib.request.OpenerDirector, address: str) -> str:
    with contextlib.suppress(OSError):
        return visitor.open(f"{address}/", timeout=10).read().decode()
    return ""


def _processes() -> dict[int, tuple[int, str]]:
    """Return parent and command of every process, by its id."""
    lines = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=True)
    rows = (line.split(maxsplit=2) for line in lines.stdout.splitlines())
    return {int(pid): (int(parent), command) for pid, parent, command in rows}


def _redis_servers_of(pid: int) -> list[int]:
    """Return the Redis servers that a process or its children started."""
    processes = _processes()
    family = {pid, *(child for child, (parent, _) in processes.items() if parent == pid)}
    servers = [child for child, (parent, command) in processes.items() if parent in family]
    return [child for child in servers if re.search("(redis|valkey)-server", processes[child][1])]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
