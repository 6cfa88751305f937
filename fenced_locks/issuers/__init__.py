"""Issuers: who mints fence tokens. Chosen by name, dotted path, class or instance."""

from __future__ import annotations

from importlib import import_module

from .base import AnyIssuer, ExternalIssuer, Issuer, RedisIssuer
from .clock import ClockIssuer
from .counter import CounterIssuer
from .database import DatabaseIssuer

__all__ = [
    "AnyIssuer",
    "ClockIssuer",
    "CounterIssuer",
    "DatabaseIssuer",
    "ExternalIssuer",
    "Issuer",
    "RedisIssuer",
    "get_issuer",
]

_BY_NAME: dict[object, AnyIssuer] = {"clock": ClockIssuer(), "counter": CounterIssuer(), "database": DatabaseIssuer()}
_KINDS = (RedisIssuer, ExternalIssuer)


def get_issuer(spec: object) -> AnyIssuer:
    """
    Return the issuer that ``spec`` names.

    Args:
        spec: ``"clock"``, ``"counter"``, ``"database"``, the dotted path of an issuer class or instance, or one of
            these itself.

    Raises:
        TypeError: Not a string, and not an issuer class or instance.
        ValueError: No such name, or nothing can be imported from that path.
    """
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    found = _import(spec) if isinstance(spec, str) else spec
    issuer = found() if isinstance(found, type) and issubclass(found, _KINDS) else found
    if not isinstance(issuer, _KINDS):
        raise TypeError(f"issuer must be a name, a dotted path, or an issuer class or instance; got {spec!r}")
    return issuer


def _import(spec: str) -> object:
    module, _, name = spec.rpartition(".")
    if not module:
        raise ValueError(f"issuer must be one of {', '.join(map(repr, _BY_NAME))} or a dotted path; got {spec!r}")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"issuer {spec!r} cannot be imported: {error}") from error
