"""What is said of a write that the fence refused: a log record, and the signal ``stale_write_rejected``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db.models import Model

from .exceptions import StaleToken
from .logs import about
from .signals import send, stale_write_rejected

_log = logging.getLogger(__name__)


def tell(model: type[Model], using: str, token: int, current: int | None, reason: str) -> None:
    """Tell of a write that changed nothing, or not all: ``"stale"``, ``"repeated"`` or ``"missing"``."""
    label = model._meta.label
    _log.log(
        logging.DEBUG if reason == "missing" else logging.INFO,
        "a write of %s with token %d changed nothing (%s): its row carries %s",
        *(label, token, reason, current),
        extra=about(None, token=token, current=current, model=label, using=using),
    )
    send(stale_write_rejected, model, {"token": token, "current": current, "reason": reason, "using": using})


def tell_of(error: StaleToken, model: type[Model], using: str) -> None:
    """Tell of this refusal, unless that was done where it was found first: a save may be part of another one."""
    if error.token is None or "_told" in vars(error):
        return
    mark_as_told(error)
    tell(model, using, error.token, error.current, "repeated" if error.current == error.token else "stale")


def mark_as_told(error: StaleToken) -> None:
    """Note that this refusal was told of."""
    vars(error)["_told"] = True


@contextmanager
def told(model: type[Model], using: str) -> Iterator[None]:
    """Tell of a ``StaleToken`` that leaves the block."""
    try:
        yield
    except StaleToken as error:
        tell_of(error, model, using)
        raise
