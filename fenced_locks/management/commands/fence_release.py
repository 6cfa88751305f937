"""``manage.py fence_release``: take leases away from their owners, for deploys and incidents."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from ... import counter_rows, globs
from ...conf import conf
from ...connections import get_single_client
from ...exceptions import FencedLockError
from ...freeing import Freed, free
from ...issuers import AnyIssuer, ExternalIssuer
from ...locks.core import HANDED_OVER
from ...resources import Reader, Resource
from ...shortcuts import configured_issuer
from ...texts import one_line, printable

EXIT_LEFT = 1
EXIT_USAGE = 2
EXIT_SERVER = 3
EXIT_INTERRUPTED = 130


class Command(BaseCommand):
    """Exit codes: 0 nothing named is held any more, 1 something still is, 2 a wrong argument, 3 the server."""

    help = (
        "Takes leases away from their owners; the next waiter gets the lock, and the former holder's writes are "
        "refused. Says what it would free, and asks. Exit codes: 0 freed, or nothing to free; 1 something was left; "
        "2 a wrong argument or setting; 3 the server cannot be reached."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("resource", nargs="*", help="names of resources")
        parser.add_argument("--pattern", metavar="GLOB", help="and all whose names match, like 'order:*'")
        parser.add_argument(
            "--owner", metavar="GLOB", help="only from these owners, like 'web-1:*'; alone: whatever they hold"
        )
        parser.add_argument("--using", metavar="ALIAS", help="cache alias (default: USING of FENCED_LOCKS)")
        parser.add_argument("--dry-run", action="store_true", help="only say what would be freed")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def handle(self, **options: Any) -> None:
        self._left = 0
        alias = options["using"]
        try:
            alias = conf.USING if alias is None else alias
            issuer = configured_issuer()
            client = get_single_client(alias)
            leases = list(self._leases(options, Reader(client, issuer, conf.KEY_PREFIX), issuer))
            if self._is_wanted(options, leases):
                self._left += sum([not self._free(client, lease, issuer) for lease in leases])
            if self._left and not options["dry_run"]:
                raise CommandError(f"{_leases(self._left)} left", returncode=EXIT_LEFT)
        except redis.RedisError as error:
            message = f"Redis behind cache alias {alias!r}: {one_line(error)}"
            raise CommandError(message, returncode=EXIT_SERVER) from error
        except FencedLockError as error:
            raise CommandError(one_line(error), returncode=EXIT_SERVER) from error
        except (ImproperlyConfigured, ImportError, TypeError, ValueError) as error:
            raise CommandError(one_line(error), returncode=EXIT_USAGE) from error

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a process of its own, ended by Ctrl-C without a traceback."""
        try:
            super().run_from_argv(argv)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)

    def _leases(self, options: dict[str, Any], reader: Reader, issuer: AnyIssuer) -> Iterator[Resource]:
        """Yield what is to be freed, each once; say what is not."""
        # An empty argument is a variable that a script forgot to set: it must not stand for all.
        owner = globs.compile_glob("*" if options["owner"] is None else options["owner"])
        named = reader.read([reader.name_of(resource) for resource in dict.fromkeys(options["resource"])])
        for resource in named:
            if _is_of(resource, owner):
                yield resource
            else:
                self._say(f"{_name(resource)} {_left_alone(resource)}.")
                # Something that nobody can free here; a lock that is being handed over is no such thing.
                self._left += resource.status.held and resource.status.note not in ("", HANDED_OVER)
        pattern = options["pattern"]
        if pattern is None and options["owner"] is not None and not named:
            pattern = "*"
        if pattern is None:
            if not named:
                raise ValueError("name a resource, or use --pattern or --owner")
            return
        if isinstance(issuer, ExternalIssuer) and not counter_rows.are_listed(issuer):
            raise ValueError(f"the issuer {issuer.name!r} keeps its counters outside Redis: name the resources")
        seen = {resource.name for resource in named}
        for resource in reader.held(pattern):
            if resource.name not in seen and _is_of(resource, owner):
                seen.add(resource.name)
                yield resource

    def _is_wanted(self, options: dict[str, Any], leases: list[Resource]) -> bool:
        for lease in leases:
            self._say(f"{_name(lease)} is held by {_owner(lease)}, {_remaining(lease)}.")
        if not leases:
            self._say("Nothing to free.")
            return False
        if options["dry_run"]:
            self._say(f"{_leases(len(leases))} would be freed.")
            return False
        if options["yes"] or self._ask(f"Free {_leases(len(leases))}? [y/N] "):
            return True
        raise CommandError("Nothing was freed.", returncode=EXIT_LEFT)

    def _ask(self, question: str) -> bool:
        self.stdout.write(question, ending="")
        self.stdout.flush()
        try:
            return input().strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def _free(self, client: redis.Redis, lease: Resource, issuer: AnyIssuer) -> bool:
        assert lease.owner is not None
        try:
            freed = free(client, lease.name, lease.owner, issuer, conf.KEY_PREFIX)
        except ValueError as error:
            # Keys that look like those of a lock, under a name that no lock may have.
            freed = Freed(False, problem=str(error))
        if not freed.freed:
            self._say(f"{_name(lease)} was not freed: {printable(freed.problem)}.")
            return False
        rows = f", {freed.rows} row{'s' if freed.rows > 1 else ''} with the newer token" if freed.rows else ""
        but = f", but {printable(freed.problem)}" if freed.problem else ""
        self._say(f"{_name(lease)} was freed{rows}{but}.")
        return not freed.problem

    def _say(self, text: str) -> None:
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _is_of(resource: Resource, owner: re.Pattern[bytes]) -> bool:
    return resource.owner is not None and owner.fullmatch(resource.owner) is not None


def _left_alone(resource: Resource) -> str:
    if not resource.status.held:
        return "is free"
    if resource.owner is None:
        return f"is left alone: {resource.status.note}"
    return f"is held by {_owner(resource)}"


def _name(resource: Resource) -> str:
    return printable(resource.status.resource)


def _owner(resource: Resource) -> str:
    return printable(resource.status.owner or "")


def _remaining(resource: Resource) -> str:
    seconds = resource.status.remaining
    return "without end" if seconds is None else f"{seconds:.1f} s left"


def _leases(number: int) -> str:
    return f"{number:,} lease{'' if number == 1 else 's'}"
