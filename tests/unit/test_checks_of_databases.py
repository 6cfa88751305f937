"""The check that looks at database settings: no server and no driver is needed."""

import pytest
from django.apps import apps
from django.conf import settings
from django.core.checks import run_checks

from fenced_locks.checks import TAG
from fenced_locks.checks.settings import check_found_rows

FOUND_ROWS, IGNORE_SPACE = 2, 256


def warned(monkeypatch, **database):
    monkeypatch.setitem(settings.DATABASES, "other", {"ENGINE": "django.db.backends.mysql", **database})
    return [message.id for message in check_found_rows(apps.get_app_configs())]


@pytest.mark.parametrize(
    "database",
    [
        {},
        {"OPTIONS": {}},
        {"OPTIONS": {"client_flag": FOUND_ROWS | IGNORE_SPACE}},
        {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"client_flag": 0}},
    ],
)
def test_django_s_own_flags_are_fine(monkeypatch, database):
    assert warned(monkeypatch, **database) == []


@pytest.mark.parametrize("engine", ["django.db.backends.mysql", "django_prometheus.db.backends.mysql"])
@pytest.mark.parametrize("flags", [0, IGNORE_SPACE])
def test_flags_without_found_rows_are_warned_of(monkeypatch, engine, flags):
    assert warned(monkeypatch, ENGINE=engine, OPTIONS={"client_flag": flags}) == ["fenced_locks.W004"]


def test_it_is_registered(monkeypatch):
    entry = {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"client_flag": 0}}
    monkeypatch.setitem(settings.DATABASES, "other", entry)
    (warning,) = [found for found in run_checks(tags=[TAG]) if found.id == "fenced_locks.W004"]
    assert "DATABASES['other']" in warning.msg
    assert "FOUND_ROWS" in warning.hint
