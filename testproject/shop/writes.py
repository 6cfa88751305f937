"""The one way in which the views of the shop write."""

from typing import Any

from django.http import Http404

from fenced_locks import StaleToken
from fenced_locks.models import FencedModel, FencedQuerySet


def fenced_write(rows: FencedQuerySet[Any], token: int, **fields: object) -> None:
    """
    Write one row under the fence token of the lease that the view holds.

    Raises:
        Http404: There is no such row.
        StaleToken: The row was written under a newer lease; a view under `with_fenced_lock` answers 409.
    """
    if rows.fenced_update(token, **fields):
        return
    row: FencedModel | None = rows.first()
    if row is None:
        raise Http404("There is no such row.")
    raise StaleToken(token=token, current=row.fence_token)
