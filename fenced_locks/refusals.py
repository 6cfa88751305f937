"""The refusal of a fence guard, told from other errors of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import IntegrityError
from django.db.models import Model

from . import stale_writes
from .exceptions import StaleToken
from .triggers import MESSAGE_PREFIX


def is_guard_refusal(error: BaseException) -> bool:
    """Say whether this error of the database is the refusal of a fence guard."""
    if not isinstance(error, IntegrityError) or not error.args:
        return False
    # MySQL's errors have a number in front.
    return str(error.args[-1]).startswith(MESSAGE_PREFIX)


@contextmanager
def refused_as_stale(token: int, model: type[Model], using: str) -> Iterator[None]:
    """
    Raise ``StaleToken`` where a guard refuses what a fenced write sent.

    A strict guard does so: it refuses an equal token, which ``repeatable=True`` admits.
    """
    try:
        yield
    except IntegrityError as error:
        if not is_guard_refusal(error):
            raise
        # It is never smaller: the fence has refused those already.
        stale_writes.tell(model, using, token, token, "repeated")
        refusal = StaleToken(f"fence token {token} was refused by the database: {error}", token=token)
        stale_writes.mark_as_told(refusal)
        raise refusal from error
