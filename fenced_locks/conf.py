"""The settings: one dict ``FENCED_LOCKS``, every key optional, read at access time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from .arguments import checked_flag
from .durations import to_seconds, to_seconds_or_none
from .keys import check_name


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{key} must be a string, not {value!r}")
    return value


def _alias(key: str, value: object) -> str:
    if not _text(key, value):
        raise ValueError(f"{key} must name a cache alias; it is empty")
    return str(value)


def _prefix(key: str, value: object) -> str:
    prefix = conf.outer_prefix() + _text(key, value)
    check_name(prefix + "resource")
    return prefix


def _wait(key: str, value: object) -> float | None:
    return to_seconds_or_none(key, value, zero=True)


def _models(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{key} must be a dict like {{'shop.Order': 'order:<pk>'}}, not {value!r}")
    return {_text(f"name of a model in {key}", model): _text(f"{key}[{model!r}]", value[model]) for model in value}


def _as_is(key: str, value: object) -> object:
    return value


# key: (default, check and cast)
_KEYS: dict[str, tuple[object, Callable[[str, object], Any]]] = {
    "USING": ("default", _alias),
    "KEY_PREFIX": ("", _prefix),
    "TIMEOUT": (30, to_seconds_or_none),
    "BLOCKING_TIMEOUT": (5, _wait),
    "ISSUER": ("clock", _as_is),
    "COUNTER_RETENTION": (timedelta(days=7), to_seconds),
    "RENEW": (False, checked_flag),
    "MAX_HOLD": (None, to_seconds_or_none),
    "MODELS": ({}, _models),
}


class Conf:
    """
    The settings, cast to what the code needs. Reading a bad value raises ``ImproperlyConfigured``.

    Attributes:
        USING: Cache alias of the Redis server that keeps the locks.
        KEY_PREFIX: Text put before every resource to make the lock key.
        TIMEOUT: Length of a lease in seconds; None for a lease without end.
        BLOCKING_TIMEOUT: How long to wait for a busy resource, in seconds; None for without end.
        ISSUER: Who issues fence tokens: ``clock``, ``counter``, ``database``, a dotted path or an ``Issuer``.
        COUNTER_RETENTION: How long an idle counter of the issuer ``clock`` is kept, in seconds.
        RENEW: Whether leases are renewed until they are given back.
        MAX_HOLD: After how many seconds a lease is renewed no more; None for without limit.
        MODELS: Which rows carry the tokens of a resource: names of models, and templates of resources.
    """

    USING: str
    KEY_PREFIX: str
    TIMEOUT: float | None
    BLOCKING_TIMEOUT: float | None
    ISSUER: Any
    COUNTER_RETENTION: float
    RENEW: bool
    MAX_HOLD: float | None
    MODELS: dict[str, str]

    def __init__(self) -> None:
        # What is put before every prefix, whatever the settings say: a test's own name, by which it is told apart.
        self.outer_prefix: Callable[[], str] = str

    def __getattr__(self, key: str) -> Any:
        if key not in _KEYS:
            raise AttributeError(key)
        default, cast = _KEYS[key]
        value = _user_settings().get(key, default)
        try:
            return cast(f"FENCED_LOCKS[{key!r}]", value)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from error

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (message, hint) for everything that is wrong with the setting ``FENCED_LOCKS``."""
        try:
            given = _user_settings()
        except ImproperlyConfigured as error:
            yield str(error), "Make it a dict, or leave it out."
            return
        for key in given:
            if key not in _KEYS:
                yield f"FENCED_LOCKS has an unknown key {key!r}.", _suggestion(key)
        for key in _KEYS:
            try:
                getattr(self, key)
            except ImproperlyConfigured as error:
                yield f"{error}.", f"Leave the key out for the default, {_KEYS[key][0]!r}."


def _user_settings() -> Mapping[str, object]:
    given = getattr(settings, "FENCED_LOCKS", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"FENCED_LOCKS must be a dict, not {given!r}")
    return given


def _suggestion(key: object) -> str:
    close = difflib.get_close_matches(str(key).upper(), _KEYS, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"The keys are {', '.join(_KEYS)}."


conf = Conf()
