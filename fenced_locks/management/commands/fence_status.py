"""``manage.py fence_status``: the counters and leases of a Redis server, in a stream."""

from __future__ import annotations

import gc
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import partial
from typing import Any

import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from ... import counter_rows
from ...conf import conf
from ...connections import get_single_client
from ...durations import to_seconds
from ...exceptions import IssuerError
from ...inspection import Page, read_pages
from ...issuers import ExternalIssuer, Issuer, get_issuer
from ...texts import one_line
from .. import comparing
from ..formats import Csv, Format, Json, Table
from ..watching import Paper, Screen, Terminal, watch

EXIT_USAGE = 2
EXIT_SERVER = 3
EXIT_INTERRUPTED = 130


class Command(BaseCommand):
    """List counters and leases. Exit codes: 0 done, 2 a wrong argument or setting, 3 the server cannot be read."""

    help = (
        "Lists resources with their last fence token and their lease; with --model, the rows that are ahead of their "
        "counters. Exit codes: 0 done, even if nothing matches; 1 a row is ahead and its counter was not raised; "
        "2 a wrong argument or setting; 3 the server cannot be read."
    )
    # A look at the server must be possible when something else is wrong; this says itself what it lacks.
    requires_system_checks = ()
    _screen: Screen | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "pattern",
            nargs="?",
            help="names of resources: * for anything, ? for one byte, [a-z] for one of these (default: all)",
        )
        parser.add_argument("--held", action="store_true", help="only what is held")
        parser.add_argument("--using", metavar="ALIAS", help="cache alias (default: USING of FENCED_LOCKS)")
        parser.add_argument("--format", choices=("table", "json", "csv"), default="table", help="default: table")
        parser.add_argument(
            "--watch", metavar="SECONDS", type=float, help="show the table again and again, until Ctrl-C"
        )
        comparing.add_arguments(parser)

    def handle(self, **options: Any) -> None:
        try:
            if options["watch"] is not None:
                self._watch(options)
            elif comparing.is_wanted(options):
                comparing.run(options, self._write, partial(self._conclude, options))
            else:
                self._list(options)
        except BrokenPipeError:
            self._close_stdout()

    def _watch(self, options: dict[str, Any]) -> None:
        if options["format"] != "table" or comparing.is_wanted(options):
            raise CommandError("--watch shows the table: --format and --model do not go with it", returncode=EXIT_USAGE)
        try:
            seconds = to_seconds("--watch", options["watch"])
        except ValueError as error:
            raise CommandError(one_line(error), returncode=EXIT_USAGE) from error
        # Before the screen is cleared: a wrong argument is no picture.
        _open(options)
        self._screen = Terminal(self._print) if self.stdout.isatty() else Paper(self._print)
        watch(self._screen, seconds, partial(self._list, options), EXIT_SERVER)

    def _list(self, options: dict[str, Any]) -> None:
        alias, issuer, pages = _open(options)
        try:
            counters, held = self._write_pages(self._format(options, issuer), pages)
            self._conclude(options, _summary(options, alias, counters, held) + _elsewhere(issuer))
        except redis.RedisError as error:
            message = f"Redis behind cache alias {alias!r} cannot be read: {one_line(error)}"
            raise CommandError(message, returncode=EXIT_SERVER) from error
        except IssuerError as error:
            raise CommandError(one_line(error), returncode=EXIT_SERVER) from error

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a process of its own: lean, and ended by Ctrl-C without a word."""
        # What is loaded by now stays to the end. Looking through it again and again costs an eighth of the time.
        gc.freeze()
        try:
            super().run_from_argv(argv)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)

    def _format(self, options: dict[str, Any], issuer: Issuer) -> Format:
        if options["format"] == "json":
            return Json()
        if options["format"] == "csv":
            return Csv()
        colours = self.stdout.isatty() or options["force_color"]
        # 2**50 would be the year 2005. An issuer whose tokens do not tell leaves the column empty: leave it out.
        dated = issuer.issued_at(2**50) is not None
        return Table(self.style if colours else None, dated=dated)

    def _write_pages(self, form: Format, pages: Iterator[Page]) -> tuple[int, int]:
        counters = held = 0
        self._write(form.head)
        for page in pages:
            counters += page.counters
            held += sum(page.held)
            if page.resources:
                self._write(form.lines(page))
        self._write(form.foot)
        return counters, held

    def _write(self, text: str) -> None:
        if self._screen is None:
            self._print(text)
        else:
            self._screen.write(text)

    def _print(self, text: str) -> None:
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding), ending="")

    def _conclude(self, options: dict[str, Any], message: str) -> None:
        told = options["verbosity"] > 0
        # What is not a table is read by programs.
        aside = options["format"] != "table"
        if told and not aside:
            self._write(f"{message}\n")
        self.stdout.flush()
        if told and aside:
            self.stderr.write(message, lambda text: text)

    def _close_stdout(self) -> None:
        """Let what is still buffered go nowhere: at exit it would be written again, with a word of complaint."""
        if self.stdout.fileno() == sys.stdout.fileno():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open(options: dict[str, Any]) -> tuple[str, Issuer, Iterator[Page]]:
    """Turn settings and arguments into pages; nothing is sent yet."""
    try:
        alias = conf.USING if options["using"] is None else options["using"]
        issuer = get_issuer(conf.ISSUER)
        pages = read_pages(
            get_single_client(alias), options["pattern"], prefix=conf.KEY_PREFIX, issuer=issuer, held=options["held"]
        )
    except (ImproperlyConfigured, ImportError, TypeError, ValueError) as error:
        raise CommandError(one_line(error), returncode=EXIT_USAGE) from error
    return alias, issuer, pages


def _summary(options: dict[str, Any], alias: str, counters: int, held: int) -> str:
    pattern = options["pattern"] or "*"
    if not counters:
        under = f" under the key prefix {conf.KEY_PREFIX!r}" if conf.KEY_PREFIX else ""
        return f"No counters match {pattern!r}{under} on cache alias {alias!r}."
    if options["held"] and not held:
        return f"None of the counters that match {pattern!r} is held: {counters:,} free."
    return f"{counters:,} counter{'s' if counters > 1 else ''}: {held:,} held, {counters - held:,} free."


def _elsewhere(issuer: Issuer) -> str:
    if not isinstance(issuer, ExternalIssuer) or counter_rows.are_listed(issuer):
        return ""
    return f"\nThe issuer {issuer.name!r} keeps its counters outside Redis: its resources are not among these."
