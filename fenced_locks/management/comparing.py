"""``fence_status --model``: rows that are ahead of their counters, and the raising of these counters."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Any

import redis
from django.core.exceptions import FieldDoesNotExist, FieldError, ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import Error as DatabaseError
from django.db import connections, router
from django.db.models import Model
from django.utils.connection import ConnectionDoesNotExist

from ..comparison import Page, compare, counters_of, read_rows
from ..conf import conf
from ..connections import get_single_client
from ..exceptions import IssuerError
from ..registered import model_named, registered_models
from ..shortcuts import configured_issuer
from ..templates import ResourceTemplate
from ..texts import one_line
from .ahead import FORMATS, Format

EXIT_AHEAD = 1
EXIT_USAGE = 2
EXIT_SERVER = 3
_USAGE = (ConnectionDoesNotExist, FieldDoesNotExist, ImproperlyConfigured, LookupError, TypeError, ValueError)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that compare rows with counters."""
    rows = parser.add_argument_group("rows and counters")
    rows.add_argument("--model", metavar="APP.MODEL", help="compare the rows of this model with their counters")
    rows.add_argument(
        "--resource",
        metavar="NAME",
        help="how its rows are locked, like 'order:<pk>'; by default as in the setting MODELS",
    )
    rows.add_argument("--database", metavar="ALIAS", help="database of the rows (default: the router's)")
    rows.add_argument("--repair", action="store_true", help="raise the counters that are behind; lowers none")


def is_wanted(options: dict[str, Any]) -> bool:
    """Return whether any of these arguments was given."""
    return options["repair"] or any(options[name] is not None for name in ("model", "resource", "database"))


def run(options: dict[str, Any], write: Callable[[str], None], conclude: Callable[[str], None]) -> None:
    """
    Write the rows that are ahead, then a summary.

    Raises:
        CommandError: With the exit code: 1 if a row is ahead and its counter was not raised, 2 for a wrong argument
            or setting, 3 if a server cannot be read.
    """
    alias, pages = _open(options)
    try:
        rows, ahead, raised = _write_pages(FORMATS[options["format"]](), pages, write)
    except (redis.RedisError, IssuerError, DatabaseError) as error:
        message = f"rows and counters (cache alias {alias!r}) cannot be compared: {one_line(error)}"
        raise CommandError(message, returncode=EXIT_SERVER) from error
    except (FieldError, NotImplementedError, ValueError) as error:
        raise CommandError(one_line(error), returncode=EXIT_USAGE) from error
    conclude(_summary(rows, ahead, raised))
    if ahead > raised:
        remedy = "" if options["repair"] else "; --repair raises their counters"
        raise CommandError(f"{_rows(ahead - raised)} ahead{remedy}", returncode=EXIT_AHEAD)


def _open(options: dict[str, Any]) -> tuple[str, Iterator[Page]]:
    """Turn settings and arguments into pages; nothing is sent yet."""
    if options["model"] is None:
        raise CommandError("--resource, --database and --repair go with --model", returncode=EXIT_USAGE)
    if options["pattern"] is not None or options["held"]:
        raise CommandError("a pattern and --held do not go with --model", returncode=EXIT_USAGE)
    try:
        alias = conf.USING if options["using"] is None else options["using"]
        model = model_named(options["model"])
        model._meta.get_field("fence_token")
        resource, database = options["resource"], options["database"]
        template = ResourceTemplate(_registered_as(model) if resource is None else resource)
        database = connections[router.db_for_write(model) if database is None else database]
        rows = read_rows(model, template, database.alias)
        counters = counters_of(configured_issuer(), get_single_client(alias))
    except _USAGE as error:
        raise CommandError(one_line(error), returncode=EXIT_USAGE) from error
    return alias, compare(rows, counters, prefix=conf.KEY_PREFIX, repair=options["repair"])


def _registered_as(model: type[Model]) -> str:
    """Return how the rows of a model are locked, by the settings."""
    for each in registered_models():
        if each.model is model:
            return each.template.text
    raise ValueError(f"--resource is missing, and FENCED_LOCKS['MODELS'] does not name {model._meta.label}")


def _write_pages(form: Format, pages: Iterator[Page], write: Callable[[str], None]) -> tuple[int, int, int]:
    rows = ahead = raised = 0
    write(form.head)
    for page in pages:
        rows += page.rows
        ahead += len(page.ahead)
        raised += sum([each.raised for each in page.ahead])
        if page.ahead:
            write(form.lines(page.ahead))
    write(form.foot)
    return rows, ahead, raised


def _summary(rows: int, ahead: int, raised: int) -> str:
    if not ahead:
        return f"{_rows(rows)} compared: none is ahead of its counter."
    return f"{_rows(rows)} compared: {ahead:,} ahead of the counter, {raised:,} of these raised."


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"
