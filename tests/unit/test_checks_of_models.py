"""The check that looks at the managers of fenced models."""

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.db import models
from django.test.utils import isolate_apps

from fenced_locks.checks import TAG
from fenced_locks.checks.models import check_managers
from fenced_locks.models import FencedModel, FencedQuerySet
from tests.app.models import Order


def managed(manager):
    """Return a fenced model that has this manager, in the app of the tests."""

    class Parcel(FencedModel):
        objects = manager

        class Meta:
            app_label = "app"

    return Parcel


@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        (models.Manager(), ["fenced_locks.W006"]),
        (models.QuerySet.as_manager(), ["fenced_locks.W006"]),
        (FencedQuerySet.as_manager(), []),
        (models.Manager.from_queryset(FencedQuerySet)(), []),
    ],
    ids=["plain", "plain queryset", "queryset", "from queryset"],
)
def test_a_manager_without_fenced_writes_is_warned_of(manager, expected):
    with isolate_apps("tests.app") as isolated:
        model = managed(manager)
        messages = check_managers([isolated.get_app_config("app")])
    assert [message.id for message in messages] == expected
    assert all(message.obj is model and "FencedQuerySet" in message.hint for message in messages)


def test_it_is_registered_and_looks_at_every_app(monkeypatch):
    assert check_managers(None) == []
    assert check_managers([apps.get_app_config("auth")]) == []
    monkeypatch.setattr(Order._meta, "default_manager", models.Manager())
    assert "fenced_locks.W006" in [message.id for message in run_checks(tags=[TAG])]
