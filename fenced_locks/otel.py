"""
OpenTelemetry: spans and metrics of locks. Needs the extra ``otel``; nothing happens before ``instrument()``.

Spans, each a child of the span that was current where the lock was taken:

``fenced_lock acquire``: from the call of ``acquire`` until it had the lease, or until the wait was over.
``fenced_lock hold``: from the grant until the lease was given back or lost. It is never the current span itself, since
a lease may be given back by another thread or task, or after the end of a transaction.

A refused write is an event, ``fenced_lock stale write``, of the span that is current there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import signals

try:
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import Span, Status, StatusCode, TracerProvider, get_current_span, get_tracer
except ImportError as error:
    raise ImportError(
        "fenced_locks.otel needs the package opentelemetry-api: install the extra, django-fenced-locks[otel]"
    ) from error

Labels = dict[str, str]

_NAME = "fenced_locks"
# Seconds; those of OpenTelemetry itself are made for milliseconds.
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    resource_label: Callable[[str], str] | None = None,
) -> None:
    """
    Make spans and metrics of all locks and fenced writes of this process, from now on; replaces an earlier call.

    Args:
        tracer_provider: Where spans go; by default the global one.
        meter_provider: Where metrics go; by default the global one.
        resource_label: Called with the name of a lock, returns the label ``fenced_locks.resource`` of its metrics. By
            default there is none: each resource would be a time series of its own. Spans always name the resource.

    Raises:
        TypeError: One of them is of a wrong type; an earlier call counts on.
    """
    global _present
    if resource_label is not None and not callable(resource_label):
        raise TypeError(f"resource_label must be a function of the name of a lock, not {resource_label!r}")
    for name, provider, kind in (
        ("tracer_provider", tracer_provider, TracerProvider),
        ("meter_provider", meter_provider, MeterProvider),
    ):
        if provider is not None and not isinstance(provider, kind):
            raise TypeError(f"{name} must be a {kind.__name__} of OpenTelemetry, not {provider!r}")
    following = _Instruments(tracer_provider, meter_provider, resource_label)
    uninstrument()
    _present = following
    _present.connect()


def uninstrument() -> None:
    """Make no more spans and metrics; does nothing if none are made."""
    global _present
    if _present is not None:
        _present.disconnect()
    _present = None


class _Instruments:
    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        resource_label: Callable[[str], str] | None,
    ) -> None:
        self._tracer = get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = get_meter(_NAME, meter_provider=meter_provider)
        self._resource_label = resource_label
        self._acquired = meter.create_counter("fenced_locks.acquired", "{lease}", "Leases that were granted.")
        self._busy = meter.create_counter("fenced_locks.busy", "{lease}", "Locks that stayed busy.")
        self._lost = meter.create_counter("fenced_locks.lost", "{lease}", "Leases that were lost.")
        self._stale = meter.create_counter("fenced_locks.stale_writes", "{write}", "Writes that the fence refused.")
        self._waited = meter.create_histogram(
            "fenced_locks.waited", "s", "How long was waited.", explicit_bucket_boundaries_advisory=_BUCKETS
        )
        self._held = meter.create_histogram(
            "fenced_locks.held", "s", "How long a lease was held.", explicit_bucket_boundaries_advisory=_BUCKETS
        )
        self._observers = {
            signals.lease_acquired: self._on_acquired,
            signals.lease_refused: self._on_refused,
            signals.lease_released: self._on_released,
            signals.lease_lost: self._on_lost,
        }

    def connect(self) -> None:
        """Listen."""
        for signal, observer in self._observers.items():
            signal.observers = (*signal.observers, observer)
        signals.stale_write_rejected.connect(self._on_stale_write)

    def disconnect(self) -> None:
        """Listen no more."""
        for signal, mine in self._observers.items():
            signal.observers = tuple(observer for observer in signal.observers if observer != mine)
        signals.stale_write_rejected.disconnect(self._on_stale_write)

    def _labels(self, resource: str, **labels: str) -> Labels:
        if self._resource_label is not None:
            labels["resource"] = self._resource_label(resource)
        return {f"{_NAME}.{name}": value for name, value in labels.items()}

    def _on_acquired(self, lease: Any, message: dict[str, Any]) -> None:
        now, resource = time.time_ns(), message["resource"]
        self._acquired.add(1, self._labels(resource))
        self._waited.record(message["waited"], self._labels(resource, outcome="acquired"))
        self._span("acquire", message, now - _ns(message["waited"])).end(now)
        # Kept with the lease, so that of one that nobody gives back nothing is left.
        vars(lease)["_span"] = self._span("hold", message, now)

    def _on_refused(self, lease: None, message: dict[str, Any]) -> None:
        now, resource = time.time_ns(), message["resource"]
        self._busy.add(1, self._labels(resource))
        self._waited.record(message["waited"], self._labels(resource, outcome="busy"))
        span = self._span("acquire", message, now - _ns(message["waited"]))
        span.set_status(Status(StatusCode.ERROR, "busy"))
        span.end(now)

    def _on_released(self, lease: Any, message: dict[str, Any]) -> None:
        self._held.record(message["held"], self._labels(message["resource"], outcome="released"))
        if (span := _span_of(lease)) is not None:
            span.end()

    def _on_lost(self, lease: Any, message: dict[str, Any]) -> None:
        resource = message["resource"]
        self._lost.add(1, self._labels(resource))
        self._held.record(message["held"], self._labels(resource, outcome="lost"))
        if (span := _span_of(lease)) is not None:
            span.set_status(Status(StatusCode.ERROR, "the lease was lost"))
            span.end()

    def _on_stale_write(
        self, sender: Any, *, token: int, current: int | None, reason: str, using: str, **kwargs: Any
    ) -> None:
        if reason == "missing":
            return
        labels = {f"{_NAME}.model": sender._meta.label, f"{_NAME}.reason": reason}
        self._stale.add(1, labels)
        details: dict[str, int | str] = {**labels, f"{_NAME}.fence_token": token, f"{_NAME}.database": using}
        if current is not None:
            details[f"{_NAME}.current_fence_token"] = current
        get_current_span().add_event("fenced_lock stale write", details)

    def _span(self, what: str, message: dict[str, Any], start_ns: int) -> Span:
        names = ("resource", "fence_token", "owner_id")
        attributes = {f"{_NAME}.{name}": message[name] for name in names if message.get(name) is not None}
        return self._tracer.start_span(f"fenced_lock {what}", attributes=attributes, start_time=start_ns)


def _span_of(lease: Any) -> Span | None:
    span: Span | None = vars(lease).pop("_span", None)
    return span


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


_present: _Instruments | None = None
