"""Fixtures: real servers, clients of every kind, and the proxy that hurts them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis
import servers
from django.conf import settings
from redis._parsers import _HiredisParser, _RESP2Parser
from redis.utils import HIREDIS_AVAILABLE

from tests import docs_runner, fakes
from tests.proxy import Proxy
from tests.transactions import Awaiting, Blocking

ClientFactory = Callable[..., redis.Redis]

# By database alias.
SQL_SERVERS: dict[str, Callable[[], servers.SqlServer]] = {
    "postgres": servers.postgres_server,
    "mariadb": servers.mariadb_server,
}

# RESP3 connections trade the pure Python parser for its RESP3 sibling by themselves.
PARSERS = {"python": _RESP2Parser, **({"hiredis": _HiredisParser} if HIREDIS_AVAILABLE else {})}
CLIENTS = [
    pytest.param(
        {"decode_responses": decode, "protocol": protocol, "parser_class": parser},
        id=f"{'str' if decode else 'bytes'}-resp{protocol}-{name}",
    )
    for decode in (False, True)
    for protocol in (2, 3)
    for name, parser in PARSERS.items()
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fakeredis`: the tests of locks on a server inside the process, without those that hurt it."""
    parser.addoption("--fakeredis", action="store_true", help="run the tests of locks on fakeredis")


def pytest_configure(config: pytest.Config) -> None:
    """Have every client of the tests connect to a fake server, if so told."""
    if config.getoption("--fakeredis"):
        fakes.use()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what fakes cannot do."""
    if fakes.are_used():
        config.hook.pytest_deselected(items=[item for item in items if not fakes.is_possible(item)])
        items[:] = [item for item in items if fakes.is_possible(item)]


@pytest.fixture(scope="session", autouse=True)
def redis_server(worker_id: str) -> Iterator[servers.RedisServer | servers.ExternalRedis | fakes.FakeRedisServer]:
    """One server per worker process; both cache aliases and `REDIS_URL`, for child processes, point to it."""
    if fakes.are_used():
        server = fakes.FakeRedisServer()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(settings, "CACHES", fakes.fake_caches(server.url))
            yield server
        return
    with servers.redis_server() as server, pytest.MonkeyPatch.context() as patch:
        if isinstance(server, servers.ExternalRedis):
            server.url = _own_database(server.url, worker_id)
            _refuse_foreign_data(server.url)
        patch.setenv("REDIS_URL", server.url)
        for cache in settings.CACHES.values():
            patch.setitem(cache, "LOCATION", server.url)
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: servers.RedisServer | servers.ExternalRedis | fakes.FakeRedisServer) -> str:
    """The address of the worker's own database on the shared server."""
    return redis_server.url


@pytest.fixture
def r(redis_url: str) -> Iterator[redis.Redis]:
    """A client with raw replies on an empty database, which is emptied again afterwards."""
    with redis.Redis.from_url(redis_url, **fakes.connecting()) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def client_factory(r: redis.Redis, redis_url: str) -> Iterator[ClientFactory]:
    """`client_factory(url=None, pool=ConnectionPool, **options)` makes clients that are closed after the test."""
    clients: list[redis.Redis] = []

    def make(
        url: str | None = None, pool: type[redis.ConnectionPool] = redis.ConnectionPool, **options: Any
    ) -> redis.Redis:
        options = {**fakes.connecting(), **options}
        clients.append(redis.Redis(connection_pool=pool.from_url(url or redis_url, **options)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
        client.connection_pool.disconnect()


@pytest.fixture(params=CLIENTS)
def any_client(request: pytest.FixtureRequest, client_factory: ClientFactory) -> redis.Redis:
    """A client of each kind: decoded or raw replies, RESP2 or RESP3, parser in Python or C."""
    return client_factory(**request.param)


@pytest.fixture(params=[Blocking, Awaiting])
def kind(request: pytest.FixtureRequest) -> Iterator[Blocking]:
    """Locks that block, and locks that await."""
    kind = request.param()
    yield kind
    kind.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[str], Proxy]]:
    """`make_proxy(url)` puts a proxy in front of any server."""
    proxies: list[Proxy] = []

    def make(url: str) -> Proxy:
        proxies.append(Proxy(url))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def proxy(r: redis.Redis, redis_url: str, make_proxy: Callable[[str], Proxy]) -> Proxy:
    """A proxy in front of the shared server; `client_factory(proxy.url)` makes a client of it."""
    return make_proxy(redis_url)


@pytest.fixture
def own_server() -> Iterator[Callable[..., servers.RedisServer]]:
    """`own_server(*arguments)` starts a server that the test may kill, pause, restart or fill."""
    started: list[servers.RedisServer] = []

    def start(*arguments: str) -> servers.RedisServer:
        started.append(servers.RedisServer(*arguments))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Path:
    """The folder of the project that the tutorial sets up; copy it to go on with it."""
    folder = tmp_path_factory.mktemp("shop")
    docs_runner.run_in_process(folder, redis_url)
    return folder


@pytest.fixture
def postgres() -> servers.PostgresServer | servers.ExternalDatabase:
    """
    The PostgreSQL server.

    For the ORM the mark `django_db(databases=["default", "postgres"])` is enough, without this fixture.
    """
    return cast("servers.PostgresServer", _require("postgres"))


@pytest.fixture
def mariadb() -> servers.MariadbServer | servers.ExternalDatabase:
    """The MariaDB server; for the ORM name `mariadb` among the databases of the mark instead."""
    return cast("servers.MariadbServer", _require("mariadb"))


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_modify_db_settings_parallel_suffix: None,
) -> None:
    """Put SQLite into a file, which threads and child processes can share; start the servers that are wanted."""
    path = tmp_path_factory.mktemp("sqlite") / "test.sqlite3"
    settings.DATABASES["default"]["TEST"]["NAME"] = os.environ["SQLITE_PATH"] = str(path)
    for alias in SQL_SERVERS:
        if any(_wants(alias, item) for item in request.session.items):
            _start(alias)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for the servers before the fixtures do: a test's databases are set up before all else."""
    for alias in SQL_SERVERS:
        if _wants(alias, item):
            _require(alias)


def _require(alias: str) -> servers.SqlServer:
    """Return the server; where there is none, skip, or fail on a CI machine."""
    server, reason = _start(alias)
    if server:
        return server
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def _start(alias: str) -> tuple[servers.SqlServer | None, str]:
    try:
        server = SQL_SERVERS[alias]()
    except servers.ServerUnavailable as error:
        settings.DATABASES.pop(alias, None)
        return None, str(error)
    settings.DATABASES[alias].update(server.settings())
    return server, ""


def _wants(alias: str, item: pytest.Item) -> bool:
    named = [mark.kwargs.get("databases") or () for mark in item.iter_markers("django_db")]
    named.append(getattr(getattr(item, "cls", None), "databases", ()))
    return alias in getattr(item, "fixturenames", ()) or any(alias in names for names in named)


def _own_database(url: str, worker_id: str) -> str:
    """Give each worker a database of its own on a server that all of them share."""
    parts = urlsplit(url)
    number = int(parts.path.strip("/") or 0) + int(worker_id.removeprefix("gw").replace("master", "0"))
    return urlunsplit(parts._replace(path=f"/{number}"))


def _refuse_foreign_data(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        if client.dbsize():
            message = f"{url} holds keys, and the tests would delete them: name an empty database."
            pytest.fail(message, pytrace=False)
