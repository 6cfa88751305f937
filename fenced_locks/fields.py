"""The column that keeps the newest fence token of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.db import models

from .arguments import shown

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    _BigIntegerField = models.BigIntegerField[int, int]
    _CharField = models.CharField[str, str]
else:
    _BigIntegerField = models.BigIntegerField
    _CharField = models.CharField

MAX_TOKEN = 2**63 - 1


class FenceTokenField(_BigIntegerField):
    """A ``BigIntegerField`` for the newest fence token of a row: 0 before the first, and in no form."""

    description = "Fence token"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("null"):
            raise TypeError("a fence token cannot be null: no token would be greater")
        kwargs.setdefault("default", 0)
        kwargs.setdefault("editable", False)
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        if kwargs.get("default") == 0:
            del kwargs["default"]
        kwargs.pop("editable", None)
        if self.editable:
            kwargs["editable"] = True
        return name, path, args, kwargs


class ExactCharField(_CharField):
    """A ``CharField`` that tells apart what differs, also on MySQL and MariaDB: case, accents, trailing spaces."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Return the type of the column, with a collation where the database's own may be lax."""
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            is_mariadb = cast("Any", connection).mysql_is_mariadb
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


def checked_token(token: object) -> int:
    """
    Return ``token`` if it is one.

    Raises:
        TypeError: Not an int; booleans are none, and None means that no lease is held.
        ValueError: Negative, or greater than 2**63 - 1.
    """
    if not isinstance(token, int) or isinstance(token, bool):
        held = "; the lock holds no lease" if token is None else ""
        raise TypeError(f"token must be the fence token of a lease, an int; got {token!r}{held}")
    if not 0 <= token <= MAX_TOKEN:
        raise ValueError(f"token must be between 0 and 2**63 - 1; got {shown(token)}")
    return int(token)
