"""`fence_status --model` finds the rows that are ahead of their counters; `--repair` raises these and lowers none."""

import csv
import io
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from fenced_locks import FencedLock, fenced_lock
from fenced_locks.comparison import Ahead, compare, counters_of, read_rows
from fenced_locks.issuers import ClockIssuer, CounterIssuer, DatabaseIssuer, ExternalIssuer
from fenced_locks.models import FenceCounter
from fenced_locks.templates import ResourceTemplate
from tests.app.models import Customer, Order, SpecialOrder
from tests.helpers import run_threads
from tests.routers import CountersOn

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("r")]

BY_KEY = ("--model", "app.Order", "--resource", "order:<pk>")


def fence_status(*arguments, **options):
    """Run the command in this process; return its exit code, and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("fence_status", *(arguments or BY_KEY), stdout=out, stderr=err, **options)
        code, said = 0, err.getvalue()
    except CommandError as error:
        code, said = error.returncode, str(error)
    return code, out.getvalue(), said


def hours_from_now(hours):
    """Return the token that the clock would issue then."""
    return int((time.time() + hours * 3600) * 1_000_000)


def order(token, **fields):
    return Order.objects.create(fence_token=token, **fields)


def key_of(row):
    return f"fence:{{order:{row.pk}}}"


@pytest.fixture
def counter(settings):
    settings.FENCED_LOCKS = {"ISSUER": "counter"}


def test_a_row_within_its_counter_is_not_mentioned(r, counter):
    for last in (7, 8):
        r.set(key_of(order(7)), last)
    order(0)
    assert fence_status() == (0, "2 rows compared: none is ahead of its counter.\n", "")


def test_rows_that_are_ahead_are_told_with_both_tokens_and_the_exit_code(r, counter):
    lost, behind = order(41), order(9)
    r.set(key_of(behind), 5)
    code, out, said = fence_status()
    assert code == 1
    assert out.splitlines() == [
        f"order:{lost.pk}: row {lost.pk} carries 41, no counter",
        f"order:{behind.pk}: row {behind.pk} carries 9, counter 5",
        "2 rows compared: 2 ahead of the counter, 0 of these raised.",
    ]
    assert said == "2 rows ahead; --repair raises their counters"
    assert r.get(key_of(behind)) == b"5"
    assert not r.exists(key_of(lost))


def test_repair_raises_them_says_so_and_the_next_grant_is_greater(r, counter):
    lost, behind, sound = order(41), order(9), order(3)
    r.set(key_of(behind), 5)
    r.set(key_of(sound), 1000)
    code, out, _ = fence_status(*BY_KEY, "--repair")
    assert code == 0
    assert out.splitlines() == [
        f"order:{lost.pk}: row {lost.pk} carries 41, no counter; raised",
        f"order:{behind.pk}: row {behind.pk} carries 9, counter 5; raised",
        "3 rows compared: 2 ahead of the counter, 2 of these raised.",
    ]
    assert [r.get(key_of(row)) for row in (lost, behind, sound)] == [b"41", b"9", b"1000"]
    assert r.pttl(key_of(lost)) == -1
    with fenced_lock(f"order:{lost.pk}") as lock:
        assert lock.fence_token == 42
        assert Order.objects.filter(pk=lost.pk).fenced_update(lock.fence_token, status="sent") == 1
    assert fence_status() == (0, "3 rows compared: none is ahead of its counter.\n", "")


def test_under_clock_a_missing_counter_counts_as_the_servers_time(r):
    order(hours_from_now(-1))
    ahead, behind = order(hours_from_now(1)), order(50)
    r.set(key_of(behind), 40)
    code, out, _ = fence_status()
    assert code == 1
    assert [line.split(":")[1] for line in out.splitlines()[:-1]] == [f"{ahead.pk}", f"{behind.pk}"]


@pytest.mark.parametrize(
    ("hours", "lease", "expected_s"), [(-1, None, 60), (1, None, 3600), (-1, 600, 600), (1, 600, 3600)]
)
def test_under_clock_a_raised_counter_lives_for_retention_lease_and_lead_whichever_is_longest(
    r, settings, hours, lease, expected_s
):
    settings.FENCED_LOCKS = {"COUNTER_RETENTION": 60}
    token = hours_from_now(hours)
    row = order(token)
    r.set(key_of(row), 1)
    if lease:
        r.set(f"order:{row.pk}", "somebody", px=lease * 1000)
    assert fence_status(*BY_KEY, "--repair")[0] == 0
    assert int(r.get(key_of(row))) == token
    assert expected_s - 60 < r.pttl(key_of(row)) / 1000 <= expected_s + 2
    r.delete(f"order:{row.pk}")
    with fenced_lock(f"order:{row.pk}") as lock:
        assert lock.fence_token > token


@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
@pytest.mark.django_db(transaction=True, databases=["default", "postgres", "mariadb"])
def test_the_issuer_database_is_repaired_in_its_table_after_a_change_from_clock(r, settings, alias):
    settings.DATABASE_ROUTERS = [CountersOn(alias)]
    row = order(0)
    for _ in range(2):
        with fenced_lock(f"order:{row.pk}") as lock:
            assert Order.objects.filter(pk=row.pk).fenced_update(lock.fence_token, status="sent") == 1
            token = lock.fence_token
    settings.FENCED_LOCKS = {"ISSUER": "database"}
    assert fence_status()[0] == 1
    assert fence_status(*BY_KEY, "--repair")[0] == 0
    assert FenceCounter.objects.using(alias).get().token == token
    with fenced_lock(f"order:{row.pk}") as lock:
        assert lock.fence_token == token + 1
    assert fence_status()[0] == 0


def test_holders_are_not_disturbed_and_their_counters_not_lowered(r, counter):
    row = order(5)
    r.set(key_of(row), 10)
    with fenced_lock(f"order:{row.pk}") as lock:
        assert fence_status(*BY_KEY, "--repair")[0] == 0
        assert lock.owned()
        assert (lock.fence_token, r.get(key_of(row))) == (11, b"11")


@pytest.mark.parametrize("issuer", [CounterIssuer(), DatabaseIssuer()])
def test_repair_and_grants_at_once_lower_nothing_and_repeat_nothing(r, client_factory, issuer):
    counters = counters_of(issuer, r)
    end, tokens = threading.Event(), []

    def grants():
        client = client_factory()
        for _ in range(150):
            with FencedLock(client, "order:1", timeout=30, issuer=issuer) as lock:
                tokens.append(lock.fence_token)
        end.set()

    def repairs():
        target = 0
        while not end.is_set():
            target += 3
            assert counters.raise_to({"order:1": target}) == {}

    run_threads(grants, repairs)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("value", ["many", "1.5", "-1"])
def test_a_counter_that_cannot_be_used_is_not_touched_and_told(r, counter, value):
    row = order(5)
    r.set(key_of(row), value)
    code, out, said = fence_status(*BY_KEY, "--repair")
    assert code == 1
    assert f"; not raised: counter is not a number: {value}" in out
    assert said == "1 row ahead"
    assert r.get(key_of(row)) == value.encode()


def test_a_counter_of_another_type_and_a_token_that_redis_cannot_count_on(r, counter):
    odd, great, sound = order(5), order(2**53), order(6)
    r.rpush(key_of(odd), 1)
    code, out, said = fence_status(*BY_KEY, "--repair")
    assert code == 1
    assert "not raised: counter has the wrong type: it is a list" in out
    assert f"row {great.pk} carries {2**53}, no counter; not raised: {2**53} is beyond 2**53 - 1" in out
    assert said == "2 rows ahead"
    assert r.get(key_of(sound)) == b"6"


def test_names_that_the_issuer_database_cannot_keep_do_not_hold_up_the_others(r, settings):
    settings.FENCED_LOCKS = {"ISSUER": "database", "KEY_PREFIX": "p" * 249}
    short, long = Order.objects.create(pk=1, fence_token=5), Order.objects.create(pk=100, fence_token=5)
    code, out, _ = fence_status("--model", "app.Order", "--resource", "ord:<pk>", "--repair")
    assert code == 1
    assert f"ord:{short.pk}: row 1 carries 5, no counter; raised" in out
    assert f"ord:{long.pk}: row 100 carries 5, no counter; not raised: no fence token" in out


def test_several_rows_of_one_resource_raise_it_above_all_of_them(r, counter):
    customer = Customer.objects.create(name="x")
    for token in (3, 9, 6):
        order(token, customer=customer)
    code, out, _ = fence_status("--model", "app.Order", "--resource", "customer:<customer.name>", "--repair")
    assert (code, len(out.splitlines())) == (0, 4)
    assert r.get("fence:{customer:x}") == b"9"


def test_a_key_prefix_belongs_to_the_name_of_the_counter(r, settings):
    settings.FENCED_LOCKS = {"ISSUER": "counter", "KEY_PREFIX": "shop:"}
    row = order(5)
    assert fence_status(*BY_KEY, "--repair")[0] == 0
    assert r.get(f"fence:{{shop:order:{row.pk}}}") == b"5"


@pytest.mark.django_db(transaction=True, databases=["default", "postgres"])
def test_rows_of_another_database(counter):
    Order.objects.using("postgres").create(fence_token=4)
    assert fence_status(*BY_KEY)[0] == 0
    assert fence_status(*BY_KEY, "--database", "postgres")[0] == 1


def test_a_child_model_with_the_token_in_its_parent(counter):
    row = SpecialOrder.objects.create(fence_token=8)
    code, out, _ = fence_status("--model", "app.SpecialOrder", "--resource", "order:<pk>")
    assert code == 1
    assert f"order:{row.pk}: row {row.pk} carries 8" in out


def test_json_and_csv_are_for_programs(counter):
    row = order(5, customer=Customer.objects.create(name='a "b", c'))
    arguments = ("--model", "app.Order", "--resource", "x:<customer.name>")
    wanted = {"resource": 'x:a "b", c', "pk": row.pk, "row": 5, "counter": None, "raised": False, "note": ""}
    _, out, _ = fence_status(*arguments, "--format", "json")
    assert json.loads(out) == [wanted]
    _, out, _ = fence_status(*arguments, "--format", "csv")
    assert list(csv.DictReader(io.StringIO(out))) == [
        {**wanted, "pk": str(row.pk), "row": "5", "counter": "", "raised": "false"}
    ]
    Order.objects.all().delete()
    assert fence_status(*arguments, "--format", "json")[1] == "[]\n"


WRONG = {
    "no resource": ("--model", "app.Order"),
    "no model": ("--resource", "order:<pk>"),
    "repair of nothing": ("--repair",),
    "a model that a script forgot": ("--model", ""),
    "a forgotten resource": ("--model", "app.Order", "--resource", ""),
    "a forgotten database": ("--database", "", *BY_KEY),
    "a forgotten pattern": ("", *BY_KEY),
    "a pattern": ("order:*", *BY_KEY),
    "held": ("--held", *BY_KEY),
    "no such model": ("--model", "app.Nothing", "--resource", "order:<pk>"),
    "no such app": ("--model", "nothing.Order", "--resource", "order:<pk>"),
    "no dot": ("--model", "Order", "--resource", "order:<pk>"),
    "no token": ("--model", "app.Item", "--resource", "item:<pk>"),
    "no such field": ("--model", "app.Order", "--resource", "order:<number>"),
    "an unbalanced name": ("--model", "app.Order", "--resource", "order:<pk"),
    "no value": ("--model", "app.Order", "--resource", "customer:<customer_id>"),
    "no such alias": ("--using", "nowhere", *BY_KEY),
    "no such database": ("--database", "nowhere", *BY_KEY),
    "a name that no lock may have": ("--model", "app.Order", "--resource", "fence:<pk>"),
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_a_clear_error(arguments):
    order(5)
    code, out, said = fence_status(*arguments)
    assert (code, bool(said)) == (2, True), said
    assert "unpack" not in said
    assert out in ("", "[")
    assert "\n" not in said


def test_a_server_that_cannot_be_read_is_exit_code_3(settings, caplog):
    order(5)
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
    }
    code, _, said = fence_status()
    assert code == 3
    assert "cannot be compared" in said


class Numbers(ExternalIssuer):
    name = "numbers"

    def issue(self, resource):
        return 1


def test_an_issuer_that_cannot_tell_or_be_raised_says_so(settings):
    order(5)
    settings.FENCED_LOCKS = {"ISSUER": Numbers()}
    assert fence_status() == (2, "", "the issuer 'numbers' does not tell its last tokens")
    with pytest.raises(NotImplementedError, match="cannot be raised"):
        Numbers().raise_tokens({"order:1": 5})


def test_pages_are_small_and_follow_each_other_without_a_gap(r, counter, django_assert_num_queries):
    rows = Order.objects.bulk_create([Order(fence_token=n % 7) for n in range(1, 1001)])
    with django_assert_num_queries(10):
        pages = list(read_rows(Order, ResourceTemplate("order:<pk>"), "default", page_size=100))
    seen = [row.pk for page in pages for row in page]
    assert seen == [row.pk for row in rows if row.fence_token]
    found = list(compare(iter(pages), counters_of(CounterIssuer(), r)))
    assert [page.rows for page in found] == [len(page) for page in pages]
    assert found[0].ahead[0] == Ahead(f"order:{seen[0]}", seen[0], 1, None)


def test_memory_does_not_grow_with_the_number_of_rows(r):
    counters = counters_of(ClockIssuer(), r)
    template = ResourceTemplate("order:<pk>")
    peaks = []
    for number in (1_000, 10_000):
        Order.objects.bulk_create([Order(fence_token=5) for _ in range(number)])
        tracemalloc.start()
        assert sum(page.rows for page in compare(read_rows(Order, template, "default"), counters)) >= number
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_the_script_is_sent_again_to_a_server_that_has_forgotten_it(r, counter):
    for token in (1, 2):
        order(token)
        r.script_flush()
        assert fence_status(*BY_KEY, "--repair")[0] == 0


def test_as_a_process_of_its_own_it_ends_with_the_exit_code():
    connections["default"].ensure_connection()
    order(int(time.time() * 2_000_000))
    command = [sys.executable, "-W", "error", "-m", "django", "fence_status", *BY_KEY]
    environment = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "1 row compared: 1 ahead" in done.stdout
    assert done.stderr == "CommandError: 1 row ahead; --repair raises their counters\n"


def test_the_resource_may_be_left_to_the_setting(settings):
    settings.FENCED_LOCKS = {"MODELS": {"app.Order": "order:<pk>"}}
    Order.objects.create(pk=1, fence_token=hours_from_now(1))
    code, out, _ = fence_status("--model", "app.Order")
    assert code == 1
    assert out.startswith("order:1: row 1 carries")
    code, _, said = fence_status("--model", "app.SpecialOrder")
    assert code == 2
    assert "does not name app.SpecialOrder" in said
