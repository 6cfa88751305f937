"""The servers, the proxy and the helpers do to the others' tests what they promise."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
import redis
import servers
from django.core.cache import caches
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django_redis import get_redis_connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.app.models import Order
from tests.conftest import ClientFactory
from tests.helpers import run_threads, wait_until
from tests.proxy import Proxy

OwnServer = Callable[..., servers.RedisServer]


@pytest.fixture
def client(proxy: Proxy, client_factory: ClientFactory) -> redis.Redis:
    """A client behind the proxy that tries once and waits a moment."""
    return client_factory(proxy.url, socket_timeout=0.8, retry=Retry(NoBackoff(), 0))


class TestProxy:
    def test_forwards_and_records(self, proxy: Proxy, client: redis.Redis) -> None:
        client.set("name", b"two\r\nlines")
        with client.pipeline() as pipe:
            results = pipe.get("name").lrange("none", 0, -1).get("none").execute()
        assert results == [b"two\r\nlines", [], None]
        names = b" ".join(command[0] for command in proxy.calls())
        assert names == b"SET MULTI GET LRANGE GET EXEC"
        assert proxy.calls("SET") == [(b"SET", b"name", b"two\r\nlines")]
        assert proxy.connections == 1

    def test_serves_every_kind_of_client(
        self, proxy: Proxy, any_client: redis.Redis, client_factory: ClientFactory
    ) -> None:
        options = any_client.connection_pool.connection_kwargs
        wanted = {name: options[name] for name in ("decode_responses", "protocol", "parser_class")}
        client = client_factory(proxy.url, **wanted)
        client.hset("hash", mapping={"a": 1})
        assert client.hgetall("hash") == any_client.hgetall("hash")

    def test_drops_a_reply_after_the_command_was_executed(
        self, proxy: Proxy, client: redis.Redis, r: redis.Redis
    ) -> None:
        lost = proxy.drop_reply("INCRBY")
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        lost.wait()
        assert r.get("n") == b"1"
        assert client.incr("n") == 2

    def test_drops_as_many_as_asked_and_only_what_matches(self, proxy: Proxy, client: redis.Redis) -> None:
        proxy.drop_reply(lambda command: command[:2] == (b"INCRBY", b"b"), times=2)
        assert client.incr("a") == 1
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.incr("b")
        assert client.incr("b") == 3

    def test_drops_a_request_before_the_server_sees_it(self, proxy: Proxy, client: redis.Redis, r: redis.Redis) -> None:
        proxy.drop_request()
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert r.get("n") is None

    def test_cuts_a_reply(self, proxy: Proxy, client: redis.Redis, r: redis.Redis) -> None:
        r.set("name", "value")
        proxy.cut_reply("GET", after=7)
        with pytest.raises(redis.ConnectionError):
            client.get("name")
        assert client.get("name") == b"value"

    def test_delivers_a_delayed_request_after_the_client_has_gone(
        self, proxy: Proxy, client: redis.Redis, r: redis.Redis
    ) -> None:
        go = threading.Event()
        late = proxy.delay_request(go, "INCRBY")
        with pytest.raises(redis.TimeoutError):
            client.incr("n")
        client.connection_pool.disconnect()
        assert client.incrby("n", 10) == 10
        assert r.get("n") == b"10"
        go.set()
        late.wait()
        assert r.get("n") == b"11"

    def test_waits_for_the_execution_of_a_delayed_request(
        self, own_server: OwnServer, make_proxy: Callable[[str], Proxy], client_factory: ClientFactory
    ) -> None:
        server, go = own_server(), threading.Event()
        proxy = make_proxy(server.url)
        client = client_factory(proxy.url, socket_timeout=0.1, retry=Retry(NoBackoff(), 0))
        late = proxy.delay_request(go, "INCRBY")
        with pytest.raises(redis.TimeoutError):
            client.incr("n")
        client.connection_pool.disconnect()
        server.pause()
        go.set()
        with pytest.raises(TimeoutError):
            late.wait(0.2)
        server.resume()
        late.wait()

    def test_delays_a_reply(self, proxy: Proxy, client: redis.Redis, r: redis.Redis) -> None:
        go = threading.Event()
        late = proxy.delay_reply(go, "INCRBY")
        with pytest.raises(redis.TimeoutError):
            client.incr("n")
        late.wait()
        assert r.get("n") == b"1"

    def test_keeps_requests_while_mute(self, proxy: Proxy, client: redis.Redis, r: redis.Redis) -> None:
        client.ping()
        proxy.mute()
        for _ in range(2):
            with pytest.raises(redis.TimeoutError):
                client.incr("n")
        proxy.wait_for_request("INCRBY")
        assert r.get("n") is None
        proxy.unmute()
        # The second try was on a new connection, and did not get beyond its set-up.
        wait_until(lambda: r.get("n") == b"1")
        assert client.incr("n") == 2

    def test_refuses_and_disconnects(self, proxy: Proxy, client: redis.Redis) -> None:
        client.ping()
        proxy.refuse()
        assert client.ping()
        proxy.disconnect()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        proxy.admit()
        assert client.ping()

    def test_waits_for_a_request(self, proxy: Proxy, client: redis.Redis) -> None:
        _, seen = run_threads(lambda: client.set("a", 1), lambda: proxy.wait_for_request("SET"))
        assert seen == (b"SET", b"a", b"1")
        with pytest.raises(TimeoutError):
            proxy.wait_for_request("SET", 0.05, count=2)

    def test_passes_the_end_of_a_blocked_client_on(self, proxy: Proxy, client: redis.Redis, r: redis.Redis) -> None:
        with pytest.raises(redis.TimeoutError):
            client.blpop("list", 20)
        client.connection_pool.disconnect()
        wait_until(lambda: r.info("clients")["blocked_clients"] == 0)

    def test_leaves_no_threads(self, client_factory: ClientFactory, redis_url: str) -> None:
        with Proxy(redis_url) as proxy:
            client_factory(proxy.url).ping()
            proxy.mute()
            assert _proxy_threads()
        assert not _proxy_threads()

    def test_stands_in_front_of_a_unix_socket(
        self,
        own_server: OwnServer,
        make_proxy: Callable[[str], Proxy],
        client_factory: ClientFactory,
    ) -> None:
        proxy = make_proxy(own_server().unix_url)
        assert client_factory(proxy.url).ping()


class TestRedisServer:
    def test_forgets_when_killed(self, own_server: OwnServer, client_factory: ClientFactory) -> None:
        server = own_server()
        client = client_factory(server.url)
        client.set("a", 1)
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client_factory(server.url, retry=Retry(NoBackoff(), 0)).ping()
        server.start()
        assert client.get("a") is None

    def test_remembers_over_a_restart_if_told_to(self, own_server: OwnServer, client_factory: ClientFactory) -> None:
        server = own_server("--appendonly", "yes")
        client = client_factory(server.url)
        client.set("a", 1)
        server.restart()
        assert client.get("a") == b"1"

    def test_is_mute_while_paused(self, own_server: OwnServer, client_factory: ClientFactory) -> None:
        server = own_server()
        client = client_factory(server.url, socket_timeout=0.1, retry=Retry(NoBackoff(), 0))
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client_factory(server.url).ping()

    def test_listens_on_a_unix_socket_with_the_options_given(
        self, own_server: OwnServer, client_factory: ClientFactory
    ) -> None:
        client = client_factory(own_server("--maxmemory", "2mb").unix_url)
        assert client.config_get("maxmemory") == {"maxmemory": "2097152"}

    def test_says_why_it_did_not_start(self, own_server: OwnServer) -> None:
        with pytest.raises(servers.ServerUnavailable, match="nonsense"):
            own_server("--nonsense", "1")

    @pytest.mark.parametrize("kind", ["RedisServer", "PostgresServer", "MariadbServer"])
    def test_ends_with_a_killed_process(self, kind: str, request: pytest.FixtureRequest) -> None:
        if kind != "RedisServer":
            request.getfixturevalue(kind.removesuffix("Server").lower())
        program = f"import servers; s = servers.{kind}(); print(s.directory, flush=True); input()"
        with _python(program) as child:
            assert child.stdout is not None
            directory = Path(child.stdout.readline().strip())
            with _guest(directory) as ask:
                ask()
                child.kill()
                wait_until(lambda: _fails(ask), 20)
        wait_until(lambda: not directory.exists())

    def test_is_left_alone_by_a_forked_child(self) -> None:
        program = """
import os, redis, servers
server = servers.RedisServer()
if os.fork():
    os.wait()
    print(redis.Redis.from_url(server.unix_url).ping())
"""
        with _python(program) as child:
            assert child.communicate()[0] == "True\n"

    def test_names_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(servers, "in_package", lambda *_: Path(os.devnull))
        with pytest.raises(servers.ServerUnavailable, match="install valkey-server or redis-server"):
            servers.RedisServer()


class TestDatabases:
    @pytest.mark.django_db(databases=["default", "postgres", "mariadb"], transaction=True)
    @pytest.mark.parametrize(
        ("alias", "vendor"), [("default", "sqlite"), ("postgres", "postgresql"), ("mariadb", "mysql")]
    )
    def test_there_are_three(self, alias: str, vendor: str) -> None:
        assert Order.objects.using(alias).create().fence_token == 0
        assert connections[alias].vendor == vendor

    @pytest.mark.django_db(transaction=True)
    def test_threads_share_sqlite(self) -> None:
        def write() -> BaseDatabaseWrapper:
            Order.objects.create()
            return connections["default"]

        used = run_threads(*[write] * 4)
        assert Order.objects.count() == 4
        assert [wrapper.vendor for wrapper in used] == ["sqlite"] * 4
        assert not any(wrapper.connection for wrapper in used)

    def test_postgres_without_the_orm(self, postgres: servers.PostgresServer) -> None:
        assert postgres.settings("shop")["NAME"] == "shop"

    @pytest.mark.parametrize(("scheme", "engine"), [("postgres", "postgresql"), ("mariadb", "mysql")])
    def test_an_external_one_is_taken_apart(self, scheme: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DATABASE_URL", f"{scheme}://me:se%40cret@db.example:5433/shop")
        server = servers.postgres_server() if scheme == "postgres" else servers.mariadb_server()
        assert server.settings() == {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": "shop",
            "USER": "me",
            "PASSWORD": "se@cret",
            "HOST": "db.example",
            "PORT": 5433,
        }


class TestHelpers:
    def test_both_cache_aliases_use_our_server(self, r: redis.Redis) -> None:
        get_redis_connection("default").set("a", 1)
        caches["plain"].set("b", 2)
        assert sorted(r.keys()) == [b":1:b", b"a"]

    def test_threads_hand_over_results_and_the_first_exception(self) -> None:
        assert run_threads(lambda: 1, lambda: 2) == [1, 2]
        with pytest.raises(ZeroDivisionError):
            run_threads(lambda: 1, lambda: 1 / 0)

    def test_threads_that_hang_are_reported(self) -> None:
        end = threading.Event()
        with pytest.raises(TimeoutError, match="wait"):
            run_threads(end.wait, timeout=0.05)
        end.set()


def _proxy_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("proxy")]


@contextlib.contextmanager
def _guest(directory: Path) -> Iterator[Callable[[], object]]:
    """Connect to the server that lives in a directory, and yield a function that asks it something."""
    if (directory / "mariadb.sock").exists():
        yield partial(_greeting, str(directory / "mariadb.sock"))
    elif (directory / "data").exists():
        with psycopg.connect(host=str(directory), user="postgres", autocommit=True) as connection:
            yield lambda: connection.execute("SELECT 1")
    else:
        with redis.Redis(unix_socket_path=str(directory / "redis.sock"), retry=Retry(NoBackoff(), 0)) as client:
            yield client.ping


def _greeting(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as guest:
        guest.connect(path)
        return guest.recv(5)


def _fails(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except (redis.ConnectionError, psycopg.OperationalError, OSError):
        return True
    return False


def _python(program: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(servers.__file__)}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
