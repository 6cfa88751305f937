"""Asyncio clients for a cache alias: like the blocking one in every setting, one per event loop, closed with it."""

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from urllib.parse import urlsplit

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django_redis.pool import ConnectionFactory
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from fenced_locks.connections import get_async_client, get_client
from fenced_locks.scripts import Script
from fenced_locks.wire import ReplyLost, async_wire_for, wire_for
from tests.helpers import run_threads, until, wait_until
from tests.sentinels import Sentinel

PING = Script("ping", "return redis.call('PING')['ok']")
COUNT = Script("count", "return redis.call('INCR', KEYS[1])")


async def ping(using):
    client = get_async_client(using)
    assert await client.ping()
    assert await async_wire_for(client).call(PING, (), (), 3.0) == b"PONG"
    return client


@pytest.fixture
def cache(settings, monkeypatch):
    """`cache(location, **options)` makes the alias "other"; `backend` is django-redis unless it is named."""
    # It keeps pools by address, whatever the options.
    monkeypatch.setattr(ConnectionFactory, "_pools", {})

    def make(location, backend="django_redis.cache.RedisCache", **options):
        settings.CACHES = {
            **settings.CACHES,
            "other": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options},
        }

    return make


PLAIN = "django.core.cache.backends.redis.RedisCache"


@pytest.mark.parametrize("using", ["default", "plain", None])
def test_both_redis_backends_of_django_have_one(using, r):
    async def main():
        client = await ping(using)
        assert isinstance(client, aioredis.Redis)
        assert get_async_client(using) is client
        assert async_wire_for(client).server == wire_for(get_client(using)).server
        await client.set("seen", 1)
        return client

    client = asyncio.run(main())
    assert r.get("seen") == b"1"
    assert asyncio.run(main()) is not client


def test_they_are_closed_with_their_loop(r, cache, redis_url):
    cache(redis_url, CONNECTION_POOL_KWARGS={"client_name": "mine"})

    def mine():
        return [entry["id"] for entry in r.client_list() if entry["name"] == "mine"]

    async def main():
        await ping("other")
        return mine()

    seen = asyncio.run(main()) + async_to_sync(main)()
    assert len(set(seen)) == 4
    wait_until(lambda: not mine())
    barrier = threading.Barrier(2)

    async def at_once():
        await ping("other")
        await asyncio.to_thread(barrier.wait)
        seen = mine()
        await asyncio.to_thread(barrier.wait)
        return seen

    assert [len(ids) for ids in run_threads(*[lambda: asyncio.run(at_once())] * 2)] == [4, 4]
    wait_until(lambda: not mine())


def test_outside_of_a_loop_there_is_none(r):
    with pytest.raises(RuntimeError, match="no running event loop"):
        get_async_client()


def test_other_settings_are_another_server(own_server, cache, redis_url, r):
    server = own_server()

    async def main():
        return [(await ping("other")).connection_pool.connection_kwargs["port"] for _ in range(2)]

    async def both():
        cache(redis_url)
        first = await main()
        cache(server.url)
        return first + await main()

    assert asyncio.run(both()) == [urlsplit(redis_url).port] * 2 + [server.port] * 2


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", PLAIN])
def test_credentials_database_and_unix_socket(own_server, cache, backend):
    server = own_server("--requirepass", "secret")
    with redis.Redis.from_url(server.url, password="secret") as admin:
        admin.execute_command("ACL", "SETUSER", "ada", "on", ">pw", "~*", "+@all")
        for location in (
            f"redis://ada:pw@127.0.0.1:{server.port}/3",
            f"unix://ada:pw@{server.socket}?db=3",
        ):
            cache(location, backend)

            async def main():
                client = await ping("other")
                assert await client.acl_whoami() in (b"ada", "ada")
                await client.set("in database 3", 1)

            asyncio.run(main())
            with redis.Redis(port=server.port, password="secret", db=3) as there:
                assert there.delete("in database 3")


def test_options_of_django_redis(own_server, cache):
    server = own_server("--requirepass", "secret")
    cache(
        server.url,
        PASSWORD="secret",
        SOCKET_TIMEOUT=2.5,
        SOCKET_CONNECT_TIMEOUT=1.5,
        PARSER_CLASS="redis._parsers._RESP2Parser",
        CONNECTION_POOL_CLASS="redis.BlockingConnectionPool",
        CONNECTION_POOL_KWARGS={
            "max_connections": 3,
            "timeout": 7,
            "decode_responses": True,
            "protocol": 2,
            "retry": Retry(ExponentialBackoff(cap=0.5), 2),
            "retry_on_error": [redis.exceptions.BusyLoadingError],
        },
    )

    async def main():
        client = await ping("other")
        pool = client.connection_pool
        assert isinstance(pool, aioredis.BlockingConnectionPool)
        assert (pool.max_connections, pool.timeout) == (3, 7)
        connection = pool.make_connection()
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (2.5, 1.5)
        assert isinstance(connection.retry, AsyncRetry)
        assert (connection.retry._retries, connection.retry._backoff._cap) == (2, 0.5)
        assert redis.exceptions.BusyLoadingError in connection.retry._supported_errors
        assert await client.echo("text") == "text"

    asyncio.run(main())
    # The blocking one is as it was.
    assert caches["other"].client.get_client().connection_pool.connection_kwargs["retry"]._retries == 2


class OddConnection(redis.Connection):
    pass


class Watched:
    """A client that is no ``redis.Redis`` with a pool."""

    def __init__(self, **options):
        pass


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"CONNECTION_POOL_KWARGS": {"connection_class": OddConnection}}, "OddConnection"),
        ({"CONNECTION_POOL_KWARGS": {"redis_connect_func": print}}, "redis_connect_func"),
        ({"REDIS_CLIENT_CLASS": f"{__name__}.Watched"}, "Watched"),
    ],
)
def test_what_asyncio_cannot_do_is_a_clear_error(cache, redis_url, options, reason):
    sys.modules.setdefault(__name__, sys.modules[Watched.__module__])
    cache(redis_url, **options)

    async def main():
        with pytest.raises(ImproperlyConfigured, match=rf"'other' cannot keep async locks: .*{reason}"):
            get_async_client("other")

    asyncio.run(main())


def test_ocsp_cannot_be_had(cache):
    cache("rediss://127.0.0.4:1/0", CONNECTION_POOL_KWARGS={"ssl_validate_ocsp": True})

    async def main():
        with pytest.raises(ImproperlyConfigured, match="ssl_validate_ocsp"):
            get_async_client("other")

    asyncio.run(main())


def test_an_alias_without_a_redis_client_is_the_error_of_the_blocking_one(settings):
    settings.CACHES = {**settings.CACHES, "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

    async def main():
        with pytest.raises(ImproperlyConfigured, match=r"'memory' cannot keep locks: .*LocMemCache"):
            get_async_client("memory")
        with pytest.raises(ImproperlyConfigured, match="'elsewhere'"):
            get_async_client("elsewhere")

    asyncio.run(main())


class TlsProxy(threading.Thread):
    """TLS in front of a server that has none."""

    def __init__(self, directory, port):
        super().__init__(daemon=True)
        self.certificate, key = directory / "certificate.pem", directory / "key.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", self.certificate),
            ],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._context, self._to = context, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()

    def run(self):
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    def stop(self):
        self._loop.call_soon_threadsafe(self._over.set)
        self.join(10)

    async def _serve(self):
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._link, sock=self._listener, ssl=self._context)
        await self._over.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await task

    async def _link(self, reader, writer):
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(self._pump(reader, to_writer)),
                    asyncio.ensure_future(self._pump(to_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            to_writer.close()
            writer.close()

    async def _pump(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make a certificate")
def test_tls(own_server, cache, tmp_path):
    server = own_server()
    proxy = TlsProxy(tmp_path, server.port)
    proxy.start()
    options = {"ssl_ca_certs": str(proxy.certificate), "ssl_check_hostname": True}
    cache(f"rediss://localhost:{proxy.port}/0", CONNECTION_POOL_KWARGS=options)

    async def main():
        client = await ping("other")
        assert isinstance(client.connection_pool.make_connection(), aioredis.SSLConnection)
        wire = async_wire_for(client)
        listener, reply = await wire.listen(PING, (), (), 3.0, b"wake", 30.0)
        assert reply == b"PONG"
        assert await listener.hear(0.05) is None
        await client.rpush("wake", "ticket:1")
        assert await listener.hear(3) == b"ticket:1"
        listener, _ = await wire.listen(PING, (), (), 3.0, b"wake", 30.0)
        await client.rpush("wake", "ticket:2")
        await until(lambda: listener._popped.happened)
        assert await listener.hang_up() == b"ticket:2"
        listener, _ = await wire.listen(PING, (), (), 3.0, b"wake", 30.0)
        started = time.monotonic()
        assert await listener.hang_up() is None
        assert time.monotonic() - started < 2

    async def strangers():
        cache(f"rediss://localhost:{proxy.port}/1")
        with pytest.raises(redis.exceptions.ConnectionError):
            await get_async_client("other").ping()

    try:
        asyncio.run(main())
        asyncio.run(strangers())
    finally:
        proxy.stop()


def test_sentinels_are_asked_again_when_the_master_is_none_any_more(own_server, cache, r):
    master = own_server()
    with Sentinel(master) as sentinel, redis.Redis(port=master.port) as there:
        cache(
            "redis://orders/0",
            CLIENT_CLASS="django_redis.client.SentinelClient",
            CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
            SENTINELS=[("127.0.0.1", sentinel.port)],
            SENTINEL_KWARGS={"socket_timeout": 2},
        )

        async def main():
            client = await ping("other")
            wire = async_wire_for(client)
            assert wire.server == wire_for(get_client("other")).server
            assert await wire.call(COUNT, (b"n",), (), 3.0) == 1
            there.replicaof("127.0.0.1", "1")
            # It answers all the same, and the connection is as good as ever.
            with pytest.raises(ReplyLost) as caught:
                await wire.call(COUNT, (b"n",), (), 3.0)
            assert isinstance(caught.value.__cause__, redis.exceptions.ConnectionError)
            there.replicaof("NO", "ONE")
            assert await wire.call(COUNT, (b"n",), (), 3.0) == 2

        asyncio.run(main())
        # What asked the sentinel is closed as well: forgotten with the next loop, it would warn.
        asyncio.run(ping("default"))
        gc.collect()


CHILD = """
import asyncio, gc, logging, os, threading
import django
django.setup()
from asgiref.sync import async_to_sync
from fenced_locks.connections import get_async_client
from fenced_locks.scripts import Script
from fenced_locks.wire import async_wire_for
from redis import asyncio as aioredis

# Not that a machine was slow.
logging.getLogger("asyncio").setLevel(logging.ERROR)
PING = Script("ping", "return redis.call('PING')['ok']")

async def use(using):
    client = get_async_client(using)
    await client.ping()
    wire = async_wire_for(client)
    await asyncio.gather(*[wire.call(PING, (), (), 3.0) for _ in range(20)])
    return wire

async def main(using):
    wire = await use(using)
    # Idle, blocked, cancelled and under way when the loop ends.
    first, _ = await wire.listen(PING, (), (), 3.0, b"wake", 30.0)
    await get_async_client(using).rpush("wake", "ticket")
    await first.hear(3)
    second, _ = await wire.listen(PING, (), (), 3.0, b"wake", 30.0)
    hearing = asyncio.ensure_future(second.hear(30))
    called = asyncio.ensure_future(wire.call(PING, (), (), 3.0))
    await asyncio.sleep(0)
    own = aioredis.Redis.from_url(os.environ["REDIS_URL"])
    await async_wire_for(own).call(PING, (), (), 3.0)
    await own.aclose()
    under_way = asyncio.ensure_future(wire.call(PING, (), (), 3.0))
    globals()["kept"] = under_way

async def generator():
    wire = await use("default")
    try:
        yield
    finally:
        # Later than all else is closed.
        await asyncio.sleep(0.05)
        await wire.call(PING, (), (), 3.0)
        listener, _ = await wire.listen(PING, (), (), 3.0, b"wake", 30.0)
        await wire.call(Script("push", "return redis.call('RPUSH', 'wake', 1)"), (), (), 3.0)
        assert await listener.hear(3) == b"1"

async def with_generator():
    globals()["agen"] = generator()
    await agen.__anext__()

for using in ("default", "plain"):
    for _ in range(2):
        asyncio.run(main(using))
        async_to_sync(main)(using)
asyncio.run(with_generator())
threads = [threading.Thread(target=lambda: asyncio.run(main("default"))) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
loop = asyncio.new_event_loop()
loop.run_until_complete(main("default"))
loop.run_until_complete(main("plain"))
tasks = asyncio.all_tasks(loop)
for task in tasks: task.cancel()
loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
loop.run_until_complete(loop.shutdown_asyncgens())
loop.close()
gc.collect()
print("done")
"""


def test_loops_end_without_a_warning(redis_url, r, tmp_path):
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "REDIS_URL": redis_url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "PATH": "/usr/bin:/bin",
        },
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout == "done\n"
    assert not [entry for entry in r.client_list() if "b" in entry["flags"]]
