"""Tokens that are drawn outside Redis; see ``actions`` for how these steps are driven."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..arguments import shown
from ..exceptions import IssuerError
from ..issuers import ExternalIssuer
from . import core
from .actions import Ask, Steps, Target
from .core import Lease

# What a column of the database keeps.
_MAX_TOKEN = 2**63 - 1


def issue(target: Target, issuer: ExternalIssuer, held: Lease | None = None) -> Steps[int]:
    """Draw a token outside Redis, the first of a lease or another one for the lease ``held``."""
    token = yield from ask(target, issuer, partial(issuer.issue, target.resource), held)
    if not isinstance(token, int) or isinstance(token, bool) or not 0 < token <= _MAX_TOKEN:
        raise core.not_issued(target.resource, issuer.name, f"returned {shown(token)}, which is no token", held)
    return token


def ask(target: Target, issuer: ExternalIssuer, question: Callable[[], Any], held: Lease | None) -> Steps[Any]:
    """Have an issuer outside Redis do something; whatever it raises becomes an ``IssuerError``."""
    try:
        return (yield Ask(question))
    except IssuerError as error:
        error.resource = error.resource or target.resource
        raise
    except Exception as error:
        what = f"failed: {type(error).__name__}: {error}"
        raise core.not_issued(target.resource, issuer.name, what, held) from error
