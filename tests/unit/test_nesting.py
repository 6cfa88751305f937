"""Resources that are nested against their order are reported: once for each pair of kinds, and not without end."""

import pytest

from fenced_locks import nesting
from fenced_locks.nesting import rank_of, report

SERVER = (("127.0.0.1", 6379), 0)


@pytest.fixture(autouse=True)
def _nothing_reported(monkeypatch):
    monkeypatch.setattr(nesting, "_reported", set())


def rank(name, server=SERVER):
    return rank_of(server, name.encode(), name)


def test_the_report_names_both_and_what_is_held(caplog):
    report(rank("order:1"), [rank("stock:x"), rank("aisle:3"), rank("zone:9")])
    assert [record.name for record in caplog.records] == ["fenced_locks.nesting"] * 2
    first = caplog.records[0].getMessage()
    assert first.startswith("'order:1' is asked for by one who holds 'stock:x'")
    assert "'stock:x', 'aisle:3', 'zone:9'" in first
    assert "holds 'zone:9'" in caplog.records[1].getMessage()


def test_what_is_in_order_is_not_reported(caplog):
    report(rank("order:2"), [rank("order:1"), rank("aisle:3")])
    report(rank("order:1"), [])
    assert caplog.records == []


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ("order:{}", "stock:{}"),
        ("order:1", "order:2{}"),
        ("shop-{}:order:x", "shop-{}:stock:x"),
        ("job-{}", "queue-{}"),
        ("job-550e8400-e29b-41d4-a716-4466554400{}", "queue:name-{}"),
    ],
)
def test_names_of_one_kind_are_reported_once(caplog, asked, held):
    for number in range(10, 60):
        report(rank(asked.format(number)), [rank(held.format(number))])
    assert len(caplog.records) == 1


def test_slugs_behind_the_last_colon_are_of_one_kind(caplog):
    for slug in ("boots", "gloves", "hats"):
        report(rank(f"order:{slug}"), [rank(f"stock:{slug}")])
    assert len(caplog.records) == 1
    report(rank("cart:boots"), [rank("stock:boots")])
    assert len(caplog.records) == 2


def test_it_ends_where_every_pair_is_a_new_one(caplog):
    letters = [f"{a}{b}" for a in "ghijklmnopqrstuv" for b in "ghijklmnopqrstuv"]
    for letter in letters:
        report(rank(f"{letter}:1"), [rank(f"z{letter}:1")])
    assert len(caplog.records) == nesting._MOST_REPORTS == len(nesting._reported)


def test_servers_come_before_names(caplog):
    other = (("127.0.0.1", 6380), 0)
    report(rank("order:1", other), [rank("stock:x")])
    assert caplog.records == []
    report(rank("stock:x"), [rank("order:1", other)])
    assert len(caplog.records) == 1


def test_servers_that_are_known_by_an_id_of_this_process_have_no_order_among_them(caplog):
    for first, second in ((1, 2), (2, 1)):
        report(rank("stock:x", (first,)), [rank("order:1", (second,))])
        report(rank("order:1", (first,)), [rank("order:1", (second,))])
    assert caplog.records == []
