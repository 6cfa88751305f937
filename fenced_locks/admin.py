"""The page "Fenced locks" of Django's admin: what is held, by whom, and a way to free it. It needs no table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import django
import redis
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote as quote_key
from django.contrib.auth import get_permission_codename
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import Error as DatabaseError
from django.db import router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from . import counter_rows, freeing, globs
from .admin_paths import quote, unquote
from .admin_shown import RowsOf, Shown, agreement, explained, left, promise, resource_text, show
from .conf import conf
from .connections import get_single_client
from .exceptions import FencedLockError
from .issuers import ExternalIssuer
from .models import Lock
from .registered import Registered, registered_models
from .resources import Listing, Reader
from .shortcuts import configured_issuer
from .texts import printable

_ROWS_SHOWN = 50
_UNREACHABLE = (redis.ConnectionError, redis.TimeoutError)
_UNREADABLE = (redis.RedisError, FencedLockError, ImproperlyConfigured)


if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Lock]
else:
    _ModelAdmin = admin.ModelAdmin


@admin.register(Lock)
class LockAdmin(_ModelAdmin):
    """Read-only but for the release, which has a permission of its own."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Locks are taken by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """There is nothing to edit."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """There is nothing to delete."""
        return False

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Whether this user may take leases away from their owners."""
        codename = get_permission_codename("release", self.opts)
        return self.has_view_permission(request) and request.user.has_perm(f"{self.opts.app_label}.{codename}")

    def get_urls(self) -> list[URLPattern]:
        """The list, one resource and its history, and the release of one or several."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        wrap = self.admin_site.admin_view
        return [
            path("", wrap(self.changelist_view), name=f"{name}_changelist"),
            path("release/", wrap(self.release_view), name=f"{name}_release"),
            path("<str:object_id>/change/", wrap(self.change_view), name=f"{name}_change"),
            path("<str:object_id>/history/", wrap(self.history_view), name=f"{name}_history"),
        ]

    @method_decorator(require_safe)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """One part of the resources that match."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        pattern, held = request.GET.get("q", "").strip(), request.GET.get("held") == "1"
        listing, problem = Listing([], ""), ""
        try:
            listing = _reader().find(pattern or None, request.GET.get("cursor", ""), held=held)
        except (*_UNREADABLE, ValueError) as error:
            problem = explained(error)
        asked = {key: value for key, value in (("q", pattern), ("held", "1" if held else "")) if value}
        context = {
            "title": "Fenced locks",
            "pattern": pattern,
            "wider": _wider(pattern),
            "held": held,
            "begun": bool(request.GET.get("cursor")),
            "first": f"?{urlencode(asked)}",
            "following": f"?{urlencode({**asked, 'cursor': listing.cursor})}" if listing.cursor else "",
            "switch": f"?{urlencode({'q': pattern, 'held': '' if held else '1'})}",
            "resources": (resources := [show(resource) for resource in listing.resources]),
            "can_release": self.has_release_permission(request) and any(shown.can_free for shown in resources),
            "elsewhere": _elsewhere(),
            "problem": problem,
        }
        return self._page(request, "change_list.html", context, extra_context)

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """One resource, and the rows that carry its tokens."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context: dict[str, Any] = {"title": "View fenced lock", "can_release": self.has_release_permission(request)}
        name = unquote(object_id)
        context["subtitle"] = context["here"] = _text(name)
        context["path"] = quote(name)
        try:
            reader = _reader()
            (resource,) = reader.read([_lock_name(reader, name)])
            context["shown"] = shown = show(resource)
            context["tables"] = list(self._tables(request, shown))
        except _UNREADABLE as error:
            context["problem"] = explained(error)
        return self._page(request, "change_form.html", context, extra_context)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Lock:
        """The lock of that name: there is no row to look for."""
        return Lock(resource=object_id)

    @method_decorator(require_safe)
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What was released here: when, by whom, and from whom."""
        return super().history_view(request, quote_key(_text(unquote(object_id))), extra_context)

    # A release is for ever, whatever becomes of the rest of the request.
    @transaction.non_atomic_requests
    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask, and then free what was confirmed: a POST that names each resource and its owner."""
        if not self.has_release_permission(request):
            raise PermissionDenied
        if request.method == "POST" and "confirmed" in request.POST:
            return self._release(request, request.POST.getlist("lease"))
        names = request.POST.getlist("name") if request.method == "POST" else request.GET.getlist("name")
        context: dict[str, Any] = {"title": "Are you sure?", "here": "Release"}
        try:
            reader = _reader()
            found = reader.read(list(dict.fromkeys(_lock_name(reader, unquote(name)) for name in names)))
            context["resources"] = [show(resource) for resource in found]
            context["labels"] = [each.model._meta.label for each in registered_models()]
        except _UNREADABLE as error:
            context["problem"] = explained(error)
        if not names:
            messages.warning(request, "Select what is to be released.")
            return HttpResponseRedirect(self._address("changelist"))
        return self._page(request, "release_confirmation.html", context, None)

    def _release(self, request: HttpRequest, leases: Sequence[str]) -> HttpResponse:
        for number, lease in enumerate(leases, 1):
            name, _, owner = lease.partition(".")
            try:
                self._release_one(request, unquote(name), unquote(owner))
            except (*_UNREADABLE, ValueError, Http404) as error:
                messages.error(request, f"Not released: {_text(unquote(name))}: {explained(error, 'says')}")
                if isinstance(error, _UNREACHABLE) and number < len(leases):
                    # Each would be waited for in turn.
                    messages.error(request, f"Not released, since not tried: {len(leases) - number} more.")
                    break
        return HttpResponseRedirect(self._address("changelist"))

    def _release_one(self, request: HttpRequest, resource: bytes, owner: bytes) -> None:
        reader = _reader()
        lock = _lock_name(reader, resource)
        (before,) = reader.read([lock])
        shown = show(before)
        freed = freeing.free(get_single_client(), lock, owner, configured_issuer(), conf.KEY_PREFIX)
        if not freed.freed:
            messages.error(request, f"Not released: {shown.resource}: {printable(freed.problem)}")
            return
        done = f"Released {shown.resource}, held by {_text(owner)}"
        told = f"{done} with {left(before)}.{promise(freed)}"
        problem = freed.problem
        try:
            with transaction.atomic(using=router.db_for_write(LogEntry)):
                self.log_change(request, Lock(resource=shown.resource), told)
        except DatabaseError as error:
            # The others that were selected must be released all the same.
            problem = explained(error)
            told += f" The log of the admin could not be written: {problem}."
        (messages.warning if problem else messages.success)(request, told)

    def _tables(self, request: HttpRequest, shown: Shown) -> Iterator[RowsOf]:
        for each in registered_models():
            meta = each.model._meta
            label = str(meta.verbose_name_plural).capitalize()
            codename = f"{meta.app_label}.{get_permission_codename('view', meta)}"
            if not request.user.has_perm(codename):
                continue
            try:
                found = list(islice(each.rows(resource_text(shown)), _ROWS_SHOWN + 1))
            except (DatabaseError, UnicodeDecodeError) as error:
                yield RowsOf(label, [], False, explained(error))
                continue
            rows = [
                (
                    f"{meta.verbose_name} {row.pk}",
                    self._row_address(each, row.pk),
                    row.token,
                    agreement(shown, row.token),
                )
                for row in found[:_ROWS_SHOWN]
            ]
            if rows:
                yield RowsOf(label, rows, len(found) > _ROWS_SHOWN, "")

    def _row_address(self, each: Registered, key: Any) -> str:
        meta = each.model._meta
        try:
            return reverse(f"{self.admin_site.name}:{meta.app_label}_{meta.model_name}_change", args=[quote_key(key)])
        except NoReverseMatch:
            return ""

    def _address(self, view: str) -> str:
        return reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_{view}")

    def _page(
        self, request: HttpRequest, template: str, context: dict[str, Any], extra: dict[str, Any] | None
    ) -> TemplateResponse:
        request.current_app = self.admin_site.name
        own = {"opts": self.opts, "since_6_1": django.VERSION >= (6, 1)}
        everything = {**self.admin_site.each_context(request), **own, **context, **(extra or {})}
        return TemplateResponse(request, f"admin/fenced_locks/lock/{template}", everything)


def _reader() -> Reader:
    return Reader(get_single_client(), configured_issuer(), conf.KEY_PREFIX)


def _text(value: bytes) -> str:
    return printable(value.decode("utf-8", "backslashreplace"))


def _wider(pattern: str) -> str:
    """Return a pattern for what has this in its name, where it is one whole name."""
    literal = globs.literal(pattern) if pattern else None
    return f"*{globs.escape(literal)}*" if literal else ""


def _lock_name(reader: Reader, resource: bytes) -> bytes:
    try:
        return reader.name_of(resource)
    except ValueError as error:
        raise Http404(str(error)) from error


def _elsewhere() -> str:
    try:
        issuer = configured_issuer()
    except ImproperlyConfigured:
        return ""
    return issuer.name if isinstance(issuer, ExternalIssuer) and not counter_rows.are_listed(issuer) else ""
