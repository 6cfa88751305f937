"""Fence tokens by resource, and what stands in place of one token where there are several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from .locks.core import Lease


class FenceTokens(Mapping[str, int]):
    """
    The tokens of leases, by resource as the user named it.

    They are those of the leases that were held when it was made, in any thread or task, also after ``advance()``.
    """

    def __init__(self, leases: Mapping[str, Lease]) -> None:
        self._leases = dict(leases)

    def __getitem__(self, resource: str) -> int:
        try:
            return self._leases[resource].fence_token
        except (KeyError, TypeError):
            names = ", ".join(map(repr, self._leases))
            raise KeyError(f"no fence token of {resource!r} here; there are those of {names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        return repr(dict(self))


def why_not_one(resources: Sequence[str], where: str) -> str:
    """Return why there is no single token for these resources, and where their tokens are found."""
    names = ", ".join(map(repr, resources))
    return (
        f"each resource has its own ({names}), and tokens of different resources do not compare; "
        f"use {where}[{resources[0]!r}]"
    )


class NoSingleToken:
    """``request.fence_token`` under the locks of several resources: refuses every use, and says why."""

    def __init__(self, resources: Sequence[str], where: str) -> None:
        self._why = f"no single fence token: {why_not_one(resources, where)}"

    def __repr__(self) -> str:
        return f"<{self._why}>"

    def _refuse(self, *_others: object) -> NoReturn:
        raise TypeError(self._why)

    __int__ = __index__ = __float__ = __bool__ = __str__ = __format__ = __hash__ = __reduce_ex__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
