"""Checks of fenced models, and of the guards of their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Info
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import connections

from ..conf import conf
from ..guards import missing_guards, promised_guards
from ..models import FencedModel
from ..registered import registered
from ..texts import one_line
from ..triggers import Trigger, can_guard


def check_managers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """The default manager of a fenced model must have fenced writes (fenced_locks.W006)."""
    return [
        CheckWarning(
            f"The default manager {model._default_manager.name!r} of this fenced model has no fenced writes, such as "
            "fenced_update().",
            hint="Make it with FencedQuerySet.as_manager(), or from models.Manager.from_queryset(FencedQuerySet).",
            obj=model,
            id="fenced_locks.W006",
        )
        for config in (apps.get_app_configs() if app_configs is None else app_configs)
        for model in config.get_models()
        if issubclass(model, FencedModel) and not hasattr(model._default_manager, "fenced_update")
    ]


def check_registered(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Models in ``MODELS`` must have a ``fence_token``, and the fields that name a resource (fenced_locks.E007)."""
    if any(conf.problems()):
        return []
    hint = "Name a model that inherits from FencedModel, and fields of it: {'shop.Order': 'order:<pk>'}."
    return [Error(f"{error}.", hint=hint, id="fenced_locks.E007") for error in _unusable_models()]


def _unusable_models() -> Iterator[ImproperlyConfigured]:
    for label, text in conf.MODELS.items():
        try:
            registered(label, text)
        except ImproperlyConfigured as error:
            yield error


def check_guards(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """
    Each fence guard that the applied migrations promise must be in the database (fenced_locks.W010).

    A database that cannot be asked is told instead (fenced_locks.W012). Only where databases are named, by
    ``check --database`` and ``migrate``.
    """
    return [message for alias in databases or () for message in _missing_guards(alias)]


def _missing_guards(alias: str) -> list[CheckMessage]:
    try:
        missing = missing_guards(connections[alias])
    except DatabaseError as error:
        return [
            CheckWarning(
                f"Database '{alias}' cannot be asked for its fence guards: {one_line(error)}.",
                hint=f"Look at DATABASES['{alias}'], and check again.",
                id="fenced_locks.W012",
            )
        ]
    return [
        CheckWarning(
            f"The fence guard '{trigger.name}' on table '{trigger.bare_table}', which the migrations promise, is "
            f"missing in database '{alias}', or is another one.",
            hint=f"Put it back with 'manage.py migrate --database {alias}'.",
            id="fenced_locks.W010",
        )
        for trigger in missing
    ]


def check_strict_guards(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A strict guard excludes writes with ``repeatable=True`` (fenced_locks.I011); asked where databases are named."""
    return [
        Info(
            f"The fence guard '{trigger.name}' on table '{trigger.bare_table}' of database '{alias}' is strict: writes "
            "with repeatable=True are refused there.",
            hint="Use AddFenceGuard without strict=True if a holder writes a row more than once.",
            id="fenced_locks.I011",
        )
        for alias in databases or ()
        for trigger in _promised_guards(alias)
        if trigger.strict
    ]


def _promised_guards(alias: str) -> list[Trigger]:
    try:
        return promised_guards(connections[alias]) if can_guard(connections[alias]) else []
    except DatabaseError:
        # The other check says so.
        return []
