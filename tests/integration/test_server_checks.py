"""Each check of a server fires on one that is bad in this way, and is silent on a good one."""

from __future__ import annotations

import io
import re
import socket
import threading

import pytest
import redis
from django.core.cache.backends.redis import RedisCache
from django.core.checks import run_checks
from django.core.management import call_command
from django_redis.client import DefaultClient

from fenced_locks import FencedLock
from fenced_locks.checks import TAG, asking, keeping, server, servers
from tests.helpers import wait_until

DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO = "django.core.cache.backends.redis.RedisCache"
CLUSTER = "redis.cluster.RedisCluster"
MEMORY = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


@pytest.fixture
def use(settings):
    """`use(url, "counter")` keeps the locks there, in an alias of their own; what else is wrong with that is named."""

    def use(url, issuer="clock", *, backend=DJANGO_REDIS, caches=None, **fenced):
        url += "" if "socket_timeout" in url else f"{'&' if '?' in url else '?'}socket_timeout=5"
        settings.CACHES = {"default": MEMORY, "locks": {"BACKEND": backend, "LOCATION": url}, **(caches or {})}
        settings.FENCED_LOCKS = {"USING": "locks", "ISSUER": issuer, **fenced}

    return use


def found(**options):
    messages = run_checks(**(options or {"tags": [TAG]}))
    return [message for message in messages if message.id.startswith("fenced_locks.")]


def ids():
    return [message.id.rpartition(".")[2] for message in found()]


def only(identity):
    (message,) = found()
    assert message.id == f"fenced_locks.{identity}"
    assert message.hint
    return message.msg


@pytest.mark.parametrize("issuer", ["clock", "counter", "database"])
@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO])
def test_a_good_server_is_silent(use, own_server, issuer, backend):
    url = own_server("--appendonly", "yes").url
    use(url, issuer, backend=backend)
    with redis.Redis.from_url(url) as client:
        # The issuer "database" would ask one, and leaves nothing behind in Redis but the lock.
        with FencedLock(client, "order:1", timeout=5, issuer="clock" if issuer == "database" else issuer):
            assert found() == []


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols(use, redis_url, protocol):
    use(f"{redis_url}?protocol={protocol}")
    assert ids() == []


# --- when they run ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db(databases=["default"])
def test_no_server_is_asked_unless_somebody_wants_that(use, proxy):
    use(proxy.url)
    for options in (
        {"databases": ["default"]},
        {"tags": ["database"], "databases": ["default"]},
        {"tags": ["security"]},
    ):
        run_checks(**options)
    call_command("check", "--database", "default", stdout=io.StringIO())
    assert proxy.connections == 0


@pytest.mark.django_db(databases=["default"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--deploy", "--database", "default"],
        ["--tag", TAG],
        ["--deploy", "--tag", TAG],
        ["--tag", "security", "--tag", TAG],
    ],
)
def test_each_way_asks_it_once(use, proxy, arguments, capsys):
    use(proxy.url, TIMEOUT=None)
    call_command("check", *arguments, stdout=io.StringIO())
    assert proxy.connections == 1
    assert capsys.readouterr().err.count("fenced_locks.W027") == 1


@pytest.mark.parametrize("broken", [{"TIMEOUTS": 3}, {"ISSUER": "clok"}, {"USING": "nowhere"}])
def test_bad_settings_are_told_alone(use, proxy, broken):
    use(proxy.url)
    use(proxy.url, **{"issuer": "clock", **{("issuer" if key == "ISSUER" else key): to for key, to in broken.items()}})
    (error,) = found()
    assert error.id[:14] == "fenced_locks.E"
    assert proxy.connections == 0


# --- W020: it cannot be asked ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda url: re.sub(r":\d+/", ":1/", url), "Connection refused"),
        (lambda url: url.replace("127.0.0.1", "no-such-host.invalid"), "no-such-host.invalid"),
        (lambda url: url.replace("127.0.0.1", "two..dots"), r"Unicode\w*Error"),
        (lambda url: url.replace("redis://", "redis://somebody:wrong@"), "WRONGPASS|invalid username-password"),
        (lambda url: url.replace("redis://", "rediss://"), "SSL|TLS|ssl|[Tt]imeout|closed"),
        (lambda url: re.sub(r"/\d+$", "/9999", url), "DB index is out of range"),
        (lambda url: "unix:///nowhere/redis.sock", "No such file"),
    ],
    ids=["refused", "unknown", "misspelt", "password", "tls", "database", "socket"],
)
@pytest.mark.usefixtures("r")
def test_a_server_that_cannot_be_asked_is_one_warning_with_the_reason(use, redis_url, monkeypatch, change, reason):
    monkeypatch.setattr(server, "SECONDS", 0.5)
    use(change(redis_url), "counter")
    message = only("W020")
    assert re.search(reason, message), message
    assert "wrong@" not in message


def test_a_server_that_says_nothing_is_not_waited_for(use, proxy, monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.2)
    use(proxy.url)
    proxy.mute()
    assert "TimeoutError" in only("W020")


def test_a_name_server_that_says_nothing_is_not_waited_for(use, monkeypatch, request):
    answer = threading.Event()
    request.addfinalizer(answer.set)
    monkeypatch.setattr(servers, "_AT_MOST", 0.2)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_options: answer.wait(20) and [])
    use("redis://redis.example:6379/0")
    assert "there was no answer within 0.2 seconds" in only("W020")


def test_a_server_whose_reply_comes_byte_by_byte_is_not_waited_for(use, monkeypatch, request):
    over = threading.Event()

    def drip(listener):
        client, _ = listener.accept()
        with client:
            # Longer than the check may take, and each byte in time.
            client.sendall(b"$100000\r\n")
            while not over.wait(0.05):
                client.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        request.addfinalizer(dripping.join)
        request.addfinalizer(over.set)
        monkeypatch.setattr(servers, "_AT_MOST", 0.5)
        use(f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2")
        assert "there was no answer within 0.5 seconds" in only("W020")


def test_something_else_that_listens_there(use, proxy):
    use(f"{proxy.url}?protocol=2")
    proxy.change_reply(lambda reply: b"HTTP/1.1 400 Bad Request\r\n", "INFO")
    assert "InvalidResponse: unexpected reply b'HTTP/1.1" in only("W020")


@pytest.mark.parametrize("command", ["INFO", "TIME", "SCAN", "PTTL"])
def test_a_server_that_goes_down_meanwhile_is_the_same_warning(use, proxy, client_factory, command):
    with FencedLock(client_factory(), "order:1", timeout=5):
        use(proxy.url, "counter")
        lost = proxy.drop_reply(command)
        only("W020")
        lost.wait()


# --- W022 to W024, W029: locks and counters that go ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "issuer", "counters"),
    [
        ("allkeys-lru", "clock", "which go on from the clock"),
        ("volatile-ttl", "clock", "which go on from the clock"),
        ("allkeys-random", "counter", "start again below"),
        ("volatile-lru", "counter", "stay: they have no expiry"),
        ("allkeys-lfu", "database", None),
    ],
)
def test_a_policy_that_evicts(use, own_server, policy, issuer, counters):
    use(own_server("--appendonly", "yes", "--maxmemory-policy", policy, "--maxmemory", "100mb").url, issuer)
    message = only("W022")
    assert f"is '{policy}'" in message
    assert "locks that are held" in message
    assert "There is no maxmemory" not in message
    assert (counters or "deletes locks that are held, so that somebody else gets in.") in message


def test_a_policy_that_evicts_nothing_yet(use, own_server):
    use(own_server("--maxmemory-policy", "allkeys-lru").url)
    assert "There is no maxmemory now" in only("W022")


def test_counters_that_are_not_written_to_disk(use, own_server):
    use(own_server("--save", "60 1").url, "counter")
    assert "no append-only file" in only("W023")


def test_counters_that_expire(use, own_server):
    url = own_server("--appendonly", "yes").url
    use(url, "counter", KEY_PREFIX="shop:")
    with redis.Redis.from_url(url) as client:
        for name, issuer in [("shop:1", "clock"), ("shop:2", "counter"), ("elsewhere:1", "clock")]:
            with FencedLock(client, name, timeout=5, issuer=issuer):
                pass
        message = only("W024")
        assert message.startswith("1 of the 2 counters that were looked at expire, such as 'fence:{shop:1}'")
        with FencedLock(client, "shop:1", timeout=5, issuer="counter"):
            pass
        assert ids() == []


def test_no_more_than_a_sample_of_the_counters_is_looked_at(use, own_server, make_proxy, monkeypatch):
    monkeypatch.setattr(keeping, "_SCANS", 2)
    started = own_server("--appendonly", "yes")
    with redis.Redis.from_url(started.url) as client:
        client.mset({f"fence:{{{number}}}": 1 for number in range(6_000)})
    proxy = make_proxy(started.url)
    use(proxy.url, "counter")
    assert ids() == []
    assert len(proxy.calls("SCAN")) == 2
    assert 2_000 <= len(proxy.calls("PTTL")) < 3_000


def test_the_sample_ends_where_the_server_is_slow(use, own_server, make_proxy, monkeypatch):
    monkeypatch.setattr(keeping, "_SCAN_SECONDS", 0.05)
    started = own_server("--appendonly", "yes")
    with redis.Redis.from_url(started.url) as client:
        client.mset({f"fence:{{{number}}}": 1 for number in range(3_000)})
    proxy = make_proxy(started.url)
    proxy.delay_reply(0.1, "SCAN", times=3)
    use(proxy.url, "counter")
    assert ids() == []
    assert len(proxy.calls("SCAN")) == 1


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO])
def test_the_default_cache_is_emptied_also_where_it_is_the_only_one(settings, redis_url, backend):
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": f"{redis_url}?socket_timeout=5"}}
    settings.FENCED_LOCKS = {}
    assert "the database of the cache 'default': cache.clear()" in only("W029").replace("Redis database", "database")


@pytest.mark.usefixtures("r")
@pytest.mark.parametrize("name", ["CACHE_MIDDLEWARE_ALIAS", "SESSION_CACHE_ALIAS"])
def test_so_is_a_cache_that_django_has_another_use_for(use, settings, redis_url, name):
    use(redis_url)
    setattr(settings, name, "locks")
    assert "'locks'" in only("W029")


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO])
@pytest.mark.parametrize("address", ["url", "localhost", "unix_url", "proxy"])
def test_another_cache_of_the_same_database_is_found_by_any_address(use, own_server, make_proxy, backend, address):
    started = own_server()
    locations = {"localhost": started.url.replace("127.0.0.1", "localhost"), "proxy": make_proxy(started.url).url}
    location = locations.get(address) or getattr(started, address)
    use(started.url, caches={"pages": {"BACKEND": backend, "LOCATION": location}})
    assert "'pages'" in only("W029")


class Own(DefaultClient):
    """A client of django-redis whose `clear()` takes its own keys only."""

    def clear(self, client=None):
        """Do less."""


class OwnKeysOnly(RedisCache):
    """A cache whose `clear()` takes its own keys only."""

    def clear(self):
        """Do less."""


@pytest.mark.parametrize(
    "others",
    [
        {"pages": {"BACKEND": DJANGO, "LOCATION": "OTHER"}},
        {"pages": {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://127.0.0.1:1/0"}},
        {"pages": {"BACKEND": "no.such.Cache"}},
        {
            "pages": {
                "BACKEND": DJANGO_REDIS,
                "LOCATION": "SAME",
                "OPTIONS": {"REDIS_CLIENT_CLASS": "redis.RedisCluster"},
            }
        },
        {"pages": {"BACKEND": DJANGO_REDIS, "LOCATION": "SAME", "OPTIONS": {"CLIENT_CLASS": f"{__name__}.Own"}}},
        {"pages": {"BACKEND": f"{__name__}.OwnKeysOnly", "LOCATION": "SAME"}},
        {"pages": MEMORY},
    ],
    ids=["other database", "down", "broken", "cluster", "own keys of a client", "own keys", "memory"],
)
def test_a_cache_that_does_not_empty_it_is_silent(use, own_server, others):
    url = own_server().url
    locations = {"OTHER": url.replace("/0", "/1"), "SAME": url}
    for cache in others.values():
        if "LOCATION" in cache:
            cache["LOCATION"] = locations.get(cache["LOCATION"], cache["LOCATION"])
    use(url, caches=others)
    assert ids() == []


# --- W025: clocks ----------------------------------------------------------------------------------------------------


def moved(seconds):
    """Return what changes a reply of TIME so that the clock goes wrong by so many seconds."""

    def change(reply):
        parts = reply.split(b"\r\n")
        later = int((int(parts[2]) + seconds) * 1_000_000) + int(parts[4])
        parts[2], parts[4] = b"%d" % (later // 1_000_000), b"%06d" % (later % 1_000_000)
        parts[3] = b"$6"
        return b"\r\n".join(parts)

    return change


@pytest.mark.parametrize(("seconds", "way"), [(30, r"(30.0|29.9) s ahead of"), (-5, r"(5.0|4.9|5.1) s behind")])
def test_a_clock_that_differs_from_this_machine_s(use, proxy, seconds, way):
    use(proxy.url)
    proxy.change_reply(moved(seconds), "TIME", times=5)
    assert re.search(f"locks' is {way} this machine's", only("W025"))


@pytest.mark.parametrize(("seconds", "expected"), [(0.9, []), (1.3, ["W025"])])
def test_half_of_the_round_trip_is_taken_off(use, proxy, make_proxy, monkeypatch, seconds, expected):
    """An answer that took 0.4 s tells the time to 0.2 s: what looks like 1.1 s is 0.9 s."""
    monkeypatch.setattr(asking, "_CLOCK_READINGS", 1)
    slow = make_proxy(proxy.url)
    use(slow.url)
    proxy.change_reply(moved(seconds), "TIME")
    slow.delay_request(0.4, "TIME")
    assert ids() == expected


@pytest.fixture
def replicated(own_server, make_proxy):
    """A primary and its replica, which is announced under the address of a proxy."""
    primary = own_server("--repl-diskless-sync-delay", "0")
    proxy = make_proxy(primary.url)
    replica = own_server(
        "--replicaof", "127.0.0.1", str(primary.port),
        "--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(proxy.port),
    )  # fmt: skip
    proxy.retarget(replica.url)
    with redis.Redis.from_url(primary.url) as client:
        wait_until(lambda: client.info("replication").get("connected_slaves"))
    return primary, replica, proxy


def test_a_replica_whose_clock_differs(use, replicated):
    primary, _, proxy = replicated
    use(primary.url)
    assert ids() == []
    assert proxy.calls("TIME")
    proxy.change_reply(moved(-3), "TIME", times=5)
    message = only("W025")
    assert f"replica 127.0.0.1:{proxy.port}" in message
    assert "behind the primary's. Once it is promoted" in message


def test_a_replica_that_cannot_be_reached_is_no_error(use, replicated):
    primary, _, proxy = replicated
    proxy.refuse()
    use(primary.url)
    assert ids() == []
    assert proxy.refused


# --- E026 to W028, I021 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "expected"), [("5.0.14", ["E026"]), ("6.0.0", []), ("10.1", [])])
def test_a_server_that_is_too_old(use, proxy, version, expected):
    def older(reply):
        body = re.sub(rb"redis_version:[\d.]+", b"redis_version:" + version.encode(), reply.partition(b"\r\n")[2][:-2])
        return b"$%d\r\n%b\r\n" % (len(body), body)

    use(proxy.url + "?protocol=2")
    proxy.change_reply(older, "INFO")
    assert ids() == expected


def test_a_lease_without_end(use, redis_url):
    use(redis_url, TIMEOUT=None)
    assert "TIMEOUT" in only("W027")


@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO])
def test_no_time_out(settings, redis_url, backend):
    options = {"socket_timeout": None} if backend == DJANGO else {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}
    cache = {"BACKEND": backend, "LOCATION": f"{redis_url}?client_name=none", "OPTIONS": options}
    settings.CACHES = {"default": MEMORY, "locks": cache}
    settings.FENCED_LOCKS = {"USING": "locks"}
    assert "has no socket_timeout" in only("W028")


def test_a_time_out_shorter_than_a_usual_reply(use, proxy):
    proxy.delay_reply(0.05, "TIME", times=5)
    use(proxy.url + "?socket_timeout=0.01")
    assert re.search(r"is 10 ms, and a reply of its server usually takes \d{2,3}", only("W028"))


@pytest.mark.parametrize("denied", ["info", "time", "scan", "pttl"])
def test_what_a_user_may_not_ask_is_told_as_such(use, own_server, denied):
    started = own_server("--appendonly", "yes")
    with redis.Redis.from_url(started.url) as client:
        with FencedLock(client, "order:1", timeout=5, issuer="counter"):
            pass
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", f"-{denied}")
    use(started.url.replace("//", "//app:secret@"), "counter")
    message = only("I021")
    assert denied in message.lower()
    assert "secret" not in message


# --- what people see -------------------------------------------------------------------------------------------------


def test_the_output_of_the_command(use, own_server, capsys):
    use(own_server("--maxmemory-policy", "allkeys-lru").url, "counter")
    call_command("check", "--deploy", "--tag", TAG)
    shown = capsys.readouterr().err
    assert re.findall(r"^\?: \((fenced_locks\.W\d+)\)", shown, re.MULTILINE) == [
        "fenced_locks.W022",
        "fenced_locks.W023",
    ]
    assert shown.count("HINT: ") == 2
