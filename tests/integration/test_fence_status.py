"""`manage.py fence_status` shows what the server knows, all of it, without hurting it or the terminal."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone

import pytest
import redis
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, assume, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis.backoff import AbstractBackoff
from redis.retry import Retry

from fenced_locks import FencedLock
from fenced_locks.inspection import ResourceStatus, read_pages
from fenced_locks.issuers import ClockIssuer
from fenced_locks.keys import check_name, counter_key
from tests.helpers import run_threads, wait_until

TOKEN = 1764000000123456
READER = f"reader-{os.getpid()}"
ISSUED = datetime(2025, 11, 24, 16, 0, 0, 123456, tzinfo=timezone.utc)


def statuses(client, pattern=None, **options):
    return {status.resource: status for page in read_pages(client, pattern, **options) for status in page.statuses}


def fence_status(*arguments, **options):
    """Run the command in this process and return what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    call_command("fence_status", *arguments, stdout=out, stderr=err, **options)
    return out.getvalue(), err.getvalue()


def commands_seen(r):
    return {name.removeprefix("cmdstat_") for name in r.info("commandstats")}


@pytest.fixture
def start(r):
    """Start the command as a process of its own."""
    processes = []

    def run(*arguments, python=(), stdout=subprocess.PIPE, **environment):
        command = [sys.executable, *(python or ["-m", "django", "fence_status", *arguments])]
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": os.pathsep.join(sys.path),
            # Buffered, whatever the machine that runs the tests prefers.
            "PYTHONUNBUFFERED": "",
            **environment,
        }
        processes.append(subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


class TestReading:
    def test_a_real_lease_with_every_kind_of_client(self, any_client, r):
        with FencedLock(r, "order:1", timeout=30) as lock:
            found = statuses(any_client, issuer=ClockIssuer())["order:1"]
            assert (found.token, found.owner, found.held) == (lock.fence_token, lock.owner_id, True)
            assert 0 < found.remaining <= 30
            assert abs(found.issued_at - datetime.now(timezone.utc)) < timedelta(seconds=60)
        found = statuses(any_client, issuer=ClockIssuer())["order:1"]
        assert found == ResourceStatus("order:1", found.token, issued_at=found.issued_at)

    def test_names_and_owners_may_be_any_bytes(self, any_client, r):
        r.set("fence:{straße:1}", 7)
        r.set(b"fence:{caf\xe9}", 8)
        r.set(b"caf\xe9", b"own\xe9r")
        r.set("fence:order:{7}:x", 9)
        r.set("order:{7}:x", "web:1", px=90_000)
        found = statuses(any_client)
        assert set(found) == {"straße:1", "caf\\xe9", "order:{7}:x"}
        assert found["straße:1"] == ResourceStatus("straße:1", 7)
        assert found["caf\\xe9"] == ResourceStatus("caf\\xe9", 8, held=True, remaining=None, owner="own\\xe9r")
        assert found["order:{7}:x"].owner == "web:1"
        assert 80 < found["order:{7}:x"].remaining <= 90

    @pytest.mark.parametrize(
        ("value", "token", "note"),
        [
            ("many", None, "counter is no number: 'many'"),
            ("", None, "counter is no number: ''"),
            ("-1", None, "counter is no number: '-1'"),
            (" 1", None, "counter is no number: ' 1'"),
            ("1_0", None, "counter is no number: '1_0'"),
            ("9" * 5000, None, f"counter is no number: '{'9' * 40}'"),
            (b"\xff\x1b", None, "counter is no number: '\\\\xff\\x1b'"),
            (2**53, 2**53, "counter is beyond 2**53 - 1"),
            (2**53 - 1, 2**53 - 1, ""),
            (0, 0, ""),
        ],
    )
    def test_a_counter_that_is_no_token_is_shown_with_what_is_wrong(self, r, value, token, note):
        r.set("fence:{odd}", value)
        r.set("fence:{even}", 2)
        found = statuses(r, issuer=ClockIssuer())
        assert (found["odd"].token, found["odd"].note) == (token, note)
        assert (found["even"].token, found["even"].note) == (2, "")

    def test_keys_of_a_wrong_type_are_shown_as_what_they_are(self, any_client, r):
        r.rpush("fence:{list}", 1)
        r.set("fence:{busy}", 5)
        r.hset("busy", "a", 1)
        r.hset("fence:{both}", "a", 1)
        r.sadd("both", 1)
        r.pexpire("both", 50_000)
        r.set("fence:{free}", 6)
        found = statuses(any_client)
        assert found["list"] == ResourceStatus("list", None, note="counter is a list")
        # The lock cannot be taken as long as that key is there.
        assert found["busy"] == ResourceStatus("busy", 5, held=True, note="lock key is a hash")
        assert found["both"].note == "counter is a hash; lock key is a set"
        assert 40 < found["both"].remaining <= 50
        assert found["free"] == ResourceStatus("free", 6)
        assert not FencedLock(r, "busy", timeout=1).acquire(blocking=False)

    def test_a_lock_that_is_handed_over_is_told_in_words_and_without_its_ticket(self, any_client, r):
        r.mset({"fence:{order:1}": 5, "order:1": "ticket:web:1:abc:web:2:def"})
        found = statuses(any_client)["order:1"]
        assert (found.held, found.owner, found.note) == (True, None, "about to be taken by a waiter")
        for form in ("table", "json", "csv"):
            out, _ = fence_status(format=form)
            assert "about to be taken by a waiter" in out
            assert "ticket:" not in out

    def test_only_resources_under_the_prefix_are_ours(self, r):
        for name in ("shop[*]:a", "shop[*]:{1}", "shop[*]:", "shop*:a", "a"):
            r.set(counter_key(name), 1)
        assert set(statuses(r, prefix="shop[*]:")) == {"a", "{1}"}
        assert set(statuses(r, "{*", prefix="shop[*]:")) == {"{1}"}
        assert set(statuses(r, "a", prefix="shop[*]:")) == {"a"}

    def test_every_page_is_read_and_every_lease_belongs_to_its_resource(self, r):
        with r.pipeline() as pipe:
            for number in range(500):
                pipe.set(f"fence:{{order:{number}}}", number)
            for number in range(0, 500, 7):
                pipe.set(f"order:{number}", f"owner:{number}")
            pipe.execute()
        pages = list(read_pages(r, page_size=20))
        found = [status for page in pages for status in page.statuses]
        assert len(pages) > 10
        assert sum(page.counters for page in pages) == len(found) == 500
        assert all(status.resource == f"order:{status.token}" for status in found)
        assert all(status.held == (status.token % 7 == 0) for status in found)
        assert all(status.owner == f"owner:{status.token}" for status in found if status.held)

    def test_held_leaves_the_free_ones_out_but_counts_them(self, r):
        r.mset({"fence:{a}": 1, "fence:{b}": 2, "b": "owner", "fence:{c}": 3})
        (page,) = read_pages(r, held=True)
        assert (page.counters, [status.resource for status in page.statuses]) == (3, ["b"])

    def test_it_scans_in_batches_and_never_lists_all_keys(self, own_server, client_factory):
        client = client_factory(own_server().url)
        client.mset({f"fence:{{order:{number}}}": number for number in range(1000)})
        client.set("order:5", "owner")
        client.config_resetstat()
        list(read_pages(client, page_size=100))
        assert commands_seen(client) - {"hello", "client|setinfo", "config|resetstat", "info"} == {
            "scan",
            "mget",
            "exists",
            "pttl",
        }
        stats = client.info("commandstats")
        assert stats["cmdstat_pttl"]["calls"] == 1
        assert stats["cmdstat_mget"]["calls"] <= stats["cmdstat_scan"]["calls"] <= 20

    def test_a_single_name_is_read_without_a_scan(self, own_server, client_factory):
        client = client_factory(own_server().url)
        client.mset({"fence:{order:*}": 1, "fence:{order:1}": 2})
        client.config_resetstat()
        assert set(statuses(client, r"order:\*")) == {"order:*"}
        assert "scan" not in commands_seen(client)


class TestWhileThingsChange:
    def test_a_lease_that_ends_between_two_looks_is_free(self, proxy, client_factory, r):
        r.mset({"fence:{order:1}": 1, "order:1": "owner"})
        ended = threading.Event()
        proxy.delay_request(ended, "PTTL")

        def end():
            proxy.wait_for_request("PTTL")
            r.delete("order:1")
            ended.set()

        found, _ = run_threads(lambda: statuses(client_factory(proxy.url)), end)
        assert found == {"order:1": ResourceStatus("order:1", 1)}

    @pytest.mark.parametrize(("held", "left"), [(False, ["order:1"]), (True, [])])
    def test_a_counter_that_goes_between_two_looks_is_left_out(self, proxy, client_factory, r, held, left):
        r.mset({"fence:{order:1}": 1, "fence:{order:2}": 2, "order:2": "owner"})
        gone = threading.Event()
        proxy.delay_request(gone, "MGET")

        def remove():
            proxy.wait_for_request("MGET")
            r.delete("fence:{order:2}")
            gone.set()

        pages, _ = run_threads(lambda: list(read_pages(client_factory(proxy.url), held=held)), remove)
        assert [(page.counters, [status.resource for status in page.statuses]) for page in pages] == [(1, left)]

    def test_a_connection_that_is_closed_between_two_pages_is_made_again(self, client_factory, r, redis_url):
        r.mset({f"fence:{{order:{number}}}": number for number in range(200)})
        pages = read_pages(client_factory(redis_url, client_name=READER), page_size=10)
        found = [status.token for page in [next(pages), next(pages)] for status in page.statuses]
        (reader,) = readers(r)
        r.client_kill_filter(_id=reader["id"])
        found += [status.token for page in pages for status in page.statuses]
        assert sorted(found) == list(range(200))

    def test_a_reader_that_loses_interest_leaves_no_connection_behind(self, client_factory, r, redis_url):
        r.mset({f"fence:{{order:{number}}}": number for number in range(200)})
        pages = read_pages(client_factory(redis_url, client_name=READER), page_size=10)
        next(pages)
        assert len(readers(r)) == 1
        del pages
        wait_until(lambda: not readers(r))

    def test_an_error_leaves_no_connection_behind(self, client_factory, r, redis_url):
        r.set("fence:{order:1}", 1)
        pages = read_pages(client_factory(redis_url, client_name=READER), page_size=0)
        with pytest.raises(redis.ResponseError) as caught:
            next(pages)
        wait_until(lambda: not readers(r))
        # Whoever keeps the error keeps all that it passed through.
        assert caught.tb


def readers(r):
    return [client for client in r.client_list() if client["name"] == READER]


NAMES = st.text(alphabet="ab:*?[]^\\-{}é\n", min_size=1, max_size=8)
PATTERNS = st.text(alphabet="ab:*?[]^\\-{}é\n", min_size=1, max_size=8)


class TestPatterns:
    @hypothesis_settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(names=st.sets(NAMES, max_size=12), pattern=PATTERNS)
    @example(names={"order:{7}:x", "order:1", "{7}:x"}, pattern="*{7}*")
    @example(names={"order:1", "border:1", "order:10"}, pattern="order:1")
    @example(names={"a]", "ab", "a-"}, pattern="a[]-b]")
    def test_a_pattern_finds_what_the_server_itself_would_match(self, r, names, pattern):
        r.flushdb()
        names = {name for name in names if is_allowed(name)}
        for name in names:
            r.mset({name: "owner", counter_key(name): 1})
        try:
            found = set(statuses(r, pattern))
        except ValueError:
            assume(False)
        # The lock keys are the names.
        assert found == {key.decode() for key in r.scan_iter(match=pattern.encode(), count=100)} & names

    @pytest.mark.parametrize("pattern", ["order:[1", "order:\\", ""])
    def test_a_bad_pattern_is_an_error_in_one_line_before_anything_is_asked(self, settings, pattern):
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1"}}
        with pytest.raises(CommandError, match=r"\Abad pattern .*: it .*\Z") as caught:
            fence_status(pattern)
        assert caught.value.returncode == 2


def is_allowed(name):
    try:
        return check_name(name) == name
    except ValueError:
        return False


class TestTable:
    @pytest.fixture(autouse=True)
    def _data(self, r):
        r.mset({"fence:{order:1001}": TOKEN, "fence:{stock:7}": TOKEN + 1_000_000, "stock:7": "web-1:4711:ab"})
        r.pexpire("stock:7", 3_600_000)

    def test_one_line_per_resource_under_its_titles_and_a_count(self):
        out, err = fence_status()
        title, *rows, count = out.splitlines()
        assert title == "resource          last token  issued (UTC)             state  lease left  owner"
        free, held = sorted(rows)
        assert free == "order:1001  1764000000123456  2025-11-24 16:00:00.123  free"
        assert held.startswith("stock:7     1764000001123456  2025-11-24 16:00:01.123  held     3")
        assert held.endswith(" s  web-1:4711:ab")
        assert count == "2 counters: 1 held, 1 free."
        assert err == ""

    def test_pattern_and_held_choose(self):
        assert [line.split()[0] for line in fence_status("order:*")[0].splitlines()] == ["resource", "order:1001", "1"]
        assert [line.split()[0] for line in fence_status(held=True)[0].splitlines()] == ["resource", "stock:7", "2"]
        assert fence_status("order:*", held=True)[0] == ("None of the counters that match 'order:*' is held: 1 free.\n")

    def test_an_empty_result_says_so_in_one_line(self, settings):
        assert fence_status("cart:*")[0] == "No counters match 'cart:*' on cache alias 'default'.\n"
        settings.FENCED_LOCKS = {"KEY_PREFIX": "shop:"}
        assert fence_status()[0] == "No counters match '*' under the key prefix 'shop:' on cache alias 'default'.\n"

    def test_quiet_means_no_count(self):
        assert fence_status("cart:*", verbosity=0) == ("", "")

    def test_the_settings_choose_prefix_issuer_and_server(self, settings, r):
        r.mset({"fence:{shop:a}": 3, "shop:a": "owner"})
        settings.FENCED_LOCKS = {"KEY_PREFIX": "shop:", "ISSUER": "counter", "USING": "plain"}
        title, row, _ = fence_status()[0].splitlines()
        # These tokens do not tell when they were issued.
        assert title.split() == ["resource", "last", "token", "state", "lease", "left", "owner"]
        assert row.split() == ["a", "3", "held", "no", "end", "owner"]

    def test_djangos_own_redis_backend_will_do(self):
        plain, default = (re.sub(r"\d+\.\d+ s  ", "", fence_status(using=alias)[0]) for alias in ("plain", "default"))
        assert plain == default
        assert "held" in plain

    def test_what_is_wrong_stands_at_the_end_of_the_line(self, r):
        r.rpush("fence:{list}", 1)
        r.rpush("list", 1)
        (row,) = [line for line in fence_status()[0].splitlines() if line.startswith("list")]
        assert row.endswith("  (counter is a list; lock key is a list)")
        assert row.split()[1:4] == ["?", "held", "no"]

    def test_later_pages_align_as_well_as_they_can(self, r, monkeypatch):
        r.mset({f"fence:{{{'x' * number}}}": 1 for number in range(1, 60)})
        monkeypatch.setattr("fenced_locks.management.commands.fence_status.read_pages", small_pages)
        rows = fence_status("x*")[0].splitlines()[1:-1]
        places = [row.index("  free") for row in rows]
        assert len(rows) == 59
        assert places == sorted(places)

    def test_a_long_owner_is_cut(self, r):
        r.set("stock:7", "o" * 5000)
        assert "  " + "o" * 77 + "...\n" in fence_status("stock:*")[0]

    def test_nothing_reaches_the_terminal_that_could_drive_it(self, r):
        r.mset({"fence:{\x1b[2J\r\n}": 1, "\x1b[2J\r\n": "\x07\x9b\u202eowner\x00", "fence:{x}": "\x1b[1m"})
        out, _ = fence_status()
        assert [line for line in out.splitlines() if not line.isprintable()] == []
        assert "\\x1b[2J\\r\\n " in out
        assert "\\x07\\x9b\\u202eowner\\x00\n" in out
        assert "counter is no number: '\\x1b[1m'" in out

    def test_colours_are_for_terminals_or_on_demand(self, r):
        r.rpush("fence:{list}", 1)
        assert "\x1b" not in fence_status()[0]
        title, *rows, _ = fence_status(force_color=True)[0].splitlines()
        coloured = {row.split()[0].removeprefix("\x1b[33;1m").removeprefix("\x1b[31m"): row for row in rows}
        assert title.startswith("\x1b[1mresource")
        assert coloured["stock:7"].startswith("\x1b[33;1m")
        assert coloured["list"].startswith("\x1b[31m")
        assert "\x1b" not in coloured["order:1001"]


def small_pages(*arguments, **options):
    return read_pages(*arguments, **options, page_size=10)


class TestOtherFormats:
    @pytest.fixture(autouse=True)
    def _data(self, r):
        r.mset({'fence:{a,"b"\n\x00é}': TOKEN, 'a,"b"\n\x00é': "o,w", "fence:{free}": TOKEN + 1})
        r.rpush("fence:{list}", 1)

    def test_json_is_one_exact_array(self, r, monkeypatch):
        out, err = fence_status(format="json")
        rows = {row.pop("resource"): row for row in json.loads(out)}
        date = {"issued_at": ISSUED.isoformat()}
        nothing = {"held": False, "remaining": None, "owner": None, "issued_at": None, "note": ""}
        assert rows['a,"b"\n\x00é'] == {**nothing, **date, "token": TOKEN, "held": True, "owner": "o,w"}
        assert datetime.fromisoformat(rows["free"].pop("issued_at")) == ISSUED + timedelta(microseconds=1)
        assert rows["free"] == {"token": TOKEN + 1, "held": False, "remaining": None, "owner": None, "note": ""}
        assert rows["list"] == {**nothing, "token": None, "note": "counter is a list"}
        assert (out.isascii(), out.count("\n")) == (True, 5)
        assert err == "3 counters: 1 held, 2 free.\n"

    def test_json_of_many_pages_is_one_array(self, r, monkeypatch):
        r.mset({f"fence:{{{number}}}": number for number in range(100)})
        monkeypatch.setattr("fenced_locks.management.commands.fence_status.read_pages", small_pages)
        assert len(json.loads(fence_status(format="json")[0])) == 103

    def test_csv_has_a_header_and_one_line_per_resource(self):
        out, err = fence_status(format="csv")
        rows = {row.pop("resource"): row for row in csv.DictReader(io.StringIO(out, newline=""))}
        assert set(rows) == {'a,"b"\\n\\x00é', "free", "list"}
        held = rows['a,"b"\\n\\x00é']
        assert held == {
            "token": str(TOKEN),
            "held": "true",
            "remaining": "",
            "owner": "o,w",
            "issued_at": ISSUED.isoformat(),
            "note": "",
        }
        assert rows["free"]["held"] == "false"
        assert rows["list"]["note"] == "counter is a list"
        assert out.count("\n") == 4
        assert err == "3 counters: 1 held, 2 free.\n"

    @pytest.mark.parametrize(
        ("name", "nothing"), [("json", "[]\n"), ("csv", "resource,token,held,remaining,owner,issued_at,note\n")]
    )
    @pytest.mark.parametrize("pattern", ["cart:1", "cart:*"])
    def test_an_empty_result_is_valid_and_says_so_aside(self, name, nothing, pattern):
        assert fence_status(pattern, format=name) == (
            nothing,
            f"No counters match {pattern!r} on cache alias 'default'.\n",
        )


class NoPatience(AbstractBackoff):
    def compute(self, failures):
        raise AssertionError(f"asked how long to wait after {failures} failures")


def full_port(stack):
    """Return a port that lets connections wait for ever: as many as it admits are there, and none is accepted."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    while True:
        waiting = stack.enter_context(socket.socket())
        waiting.settimeout(0.2)
        try:
            waiting.connect(listener.getsockname())
        except TimeoutError:
            return listener.getsockname()[1]


class TestTrouble:
    @pytest.mark.parametrize(
        ("options", "changes", "message"),
        [
            ({"using": "nowhere"}, {}, "'nowhere'"),
            ({"using": "memory"}, {}, "'memory'"),
            ({}, {"USING": "nowhere"}, "'nowhere'"),
            ({}, {"ISSUER": "sundial"}, "'sundial'"),
            ({}, {"KEY_PREFIX": 5}, "KEY_PREFIX"),
        ],
    )
    def test_wrong_arguments_and_settings_are_explained_in_one_line(self, settings, options, changes, message):
        memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
        settings.CACHES = {**settings.CACHES, "memory": memory}
        settings.FENCED_LOCKS = changes
        with pytest.raises(CommandError, match=message) as caught:
            fence_status(**options)
        assert caught.value.returncode == 2
        assert "\n" not in str(caught.value)

    def test_a_server_that_is_down_is_reported_and_not_waited_for(self, start):
        process = start(REDIS_URL="redis://127.0.0.1:1/0")
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (3, "")
        assert err.startswith("CommandError: Redis behind cache alias 'default' cannot be read: ")
        assert err.count("\n") == 1

    def test_a_bad_pattern_and_an_unknown_alias_have_their_exit_code(self, start):
        pattern, alias = start("order:["), start("--using", "nowhere")
        assert pattern.communicate(timeout=30)[1].count("\n") == 1
        assert alias.communicate(timeout=30)[1].count("\n") == 1
        assert (pattern.returncode, alias.returncode) == (2, 2)

    def test_a_host_that_does_not_answer_is_tried_once(self, client_factory):
        with contextlib.ExitStack() as stack:
            port = full_port(stack)
            impatient = Retry(NoPatience(), 5)
            client = client_factory(f"redis://127.0.0.1:{port}/0", socket_connect_timeout=0.2, retry=impatient)
            with pytest.raises(redis.TimeoutError):
                list(read_pages(client))

    def test_a_connection_is_tried_twice_at_most(self, proxy, client_factory):
        proxy.refuse()
        with pytest.raises(redis.ConnectionError):
            list(read_pages(client_factory(proxy.url)))
        assert proxy.refused == 2

    @pytest.mark.parametrize("options", [{"socket_timeout": 0.2}, {"socket_timeout": None}])
    def test_a_mute_server_is_given_up(self, proxy, client_factory, monkeypatch, options):
        monkeypatch.setattr("fenced_locks.reading_line._REPLY_TIMEOUT", 0.2)
        proxy.mute()
        with pytest.raises(redis.TimeoutError):
            list(read_pages(client_factory(proxy.url, **options)))
        assert proxy.connections == 1

    def test_a_server_that_dies_half_way_ends_the_list_with_its_error(self, own_server, client_factory):
        server = own_server()
        client = client_factory(server.url)
        client.mset({f"fence:{{order:{number}}}": number for number in range(200)})
        pages = read_pages(client, page_size=10)
        next(pages)
        server.kill()
        with pytest.raises(redis.ConnectionError):
            list(pages)

    def test_the_servers_refusal_is_reported(self, own_server, client_factory, settings):
        server = own_server()
        admin = client_factory(server.url)
        admin.execute_command("ACL", "SETUSER", "blind", "on", "nopass", "~*", "+@all", "-scan")
        location = server.url.replace("redis://", "redis://blind:secret@")
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": location}}
        with pytest.raises(CommandError, match=r"'default' cannot be read: .*scan") as caught:
            fence_status()
        assert caught.value.returncode == 3
        assert "secret" not in str(caught.value)


class TestPipesAndSignals:
    @pytest.fixture(autouse=True)
    def _data(self, r):
        # More than a pipe holds.
        r.mset({f"fence:{{order:{number}}}": TOKEN + number for number in range(5000)})

    @pytest.mark.parametrize("name", ["table", "json", "csv"])
    def test_a_reader_that_has_seen_enough_ends_it_quietly(self, start, name):
        process = start("--format", name)
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0

    @pytest.mark.parametrize("name", ["table", "json", "csv"])
    def test_a_reader_that_is_gone_before_the_first_word_is_no_error_either(self, start, name):
        process = start("order:12?", "--format", name)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0

    def test_ctrl_c_ends_it_quietly(self, start):
        process = start()
        process.stdout.readline()
        # It waits for us to read on.
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "")

    def test_a_terminal_has_colours_and_a_file_written_from_it_has_none(self, start, r, tmp_path):
        r.set("order:1", "owner")
        program = (
            "import sys, django; django.setup(); from django.core.management import call_command; "
            "call_command('fence_status', 'order:1'); "
            "call_command('fence_status', 'order:1', stdout=open(sys.argv[1], 'w'))"
        )
        file = tmp_path / "status"
        ours, theirs = os.openpty()
        process = start(python=["-W", "ignore", "-c", program, str(file)], stdout=theirs)
        os.close(theirs)
        assert process.wait(30) == 0
        assert b"\x1b[33;1morder:1 " in os.read(ours, 10_000)
        os.close(ours)
        assert "\x1b" not in file.read_text()

    def test_a_terminal_without_unicode_is_no_reason_to_fail(self, start, r):
        r.set("fence:{straße}", 1)
        out, err = start("stra*", PYTHONIOENCODING="ascii").communicate(timeout=30)
        assert "stra\\xdfe" in out
        assert err == ""
