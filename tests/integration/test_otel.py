"""Spans and metrics, as an exporter of OpenTelemetry gets them."""

import asyncio
import subprocess
import sys
import threading

import pytest
import redis.asyncio
from django.db import transaction
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from fenced_locks import AsyncFencedLock, FencedLock, LeaseLost, LockNotAcquired, StaleToken, fenced_lock, otel, signals
from tests.app.models import Order
from tests.helpers import run_threads


@pytest.fixture
def in_loop(r, redis_url):
    """`in_loop(function)` runs `await function(client)` in an event loop of its own."""

    def run(function):
        async def main():
            async with redis.asyncio.Redis.from_url(redis_url) as client:
                return await asyncio.wait_for(function(client), 30)

        return asyncio.run(main())

    return run


class Telemetry:
    """What was exported."""

    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])
        self.tracer = self.tracers.get_tracer("tests")

    def instrument(self, **options):
        otel.instrument(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self):
        """Return {metric: {labels: value, or count and sum}}."""
        found = {}
        for of_resource in ((data := self.reader.get_metrics_data()) and data.resource_metrics) or ():
            for metric in (metric for scope in of_resource.scope_metrics for metric in scope.metrics):
                points = found.setdefault(metric.name.removeprefix("fenced_locks."), {})
                for point in metric.data.data_points:
                    labels = tuple(
                        f"{k.removeprefix('fenced_locks.')}={v}" for k, v in sorted(point.attributes.items())
                    )
                    points[labels] = point.value if hasattr(point, "value") else (point.count, point.sum)
        return found


@pytest.fixture
def telemetry():
    telemetry = Telemetry()
    telemetry.instrument()
    yield telemetry
    otel.uninstrument()
    telemetry.tracers.shutdown()
    telemetry.meters.shutdown()


def test_a_lease_gives_two_spans_below_the_current_one_and_neither_is_current(r, telemetry):
    with telemetry.tracer.start_as_current_span("view") as view, FencedLock(r, "order:1", timeout=10) as lock:
        token, owner = lock.fence_token, lock.owner_id
        with telemetry.tracer.start_as_current_span("work"):
            pass
    (acquire,), (hold,) = telemetry.spans("fenced_lock acquire"), telemetry.spans("fenced_lock hold")
    (work,) = telemetry.spans("work")
    assert {span.parent.span_id for span in (acquire, hold, work)} == {view.get_span_context().span_id}
    assert (
        acquire.start_time <= acquire.end_time == hold.start_time <= work.start_time <= work.end_time <= hold.end_time
    )
    for span in (acquire, hold):
        assert span.status.status_code is StatusCode.UNSET
        assert dict(span.attributes) == {
            "fenced_locks.resource": "order:1",
            "fenced_locks.fence_token": token,
            "fenced_locks.owner_id": owner,
        }


def test_each_thread_has_its_own_parent_also_where_another_one_gives_back(r, telemetry):
    barrier = threading.Barrier(2, timeout=10)
    locks = [FencedLock(r, f"order:{number}", timeout=10, thread_local=False) for number in range(2)]

    def work(number):
        with telemetry.tracer.start_as_current_span(f"view {number}") as view:
            locks[number].acquire()
            barrier.wait()
            locks[1 - number].release()
            return view.get_span_context().span_id

    parents = run_threads(lambda: work(0), lambda: work(1))
    for what in ("acquire", "hold"):
        of = {
            span.attributes["fenced_locks.resource"]: span.parent.span_id
            for span in telemetry.spans(f"fenced_lock {what}")
        }
        assert of == {"order:0": parents[0], "order:1": parents[1]}


def test_each_task_has_its_own_parent(in_loop, telemetry):
    async def work(client):
        met = asyncio.Event()

        async def view(number):
            with telemetry.tracer.start_as_current_span(f"view {number}") as view:
                async with AsyncFencedLock(client, f"order:{number}", timeout=10):
                    if number:
                        met.set()
                    await asyncio.wait_for(met.wait(), 10)
            return view.get_span_context().span_id

        return await asyncio.gather(view(0), view(1))

    parents = in_loop(work)
    for what in ("acquire", "hold"):
        spans = telemetry.spans(f"fenced_lock {what}")
        of = {span.attributes["fenced_locks.resource"]: span.parent.span_id for span in spans}
        assert of == {"order:0": parents[0], "order:1": parents[1]}


def test_a_loss_that_renewal_finds_ends_the_span_of_who_holds(r, telemetry):
    lock = FencedLock(r, "order:1", timeout=0.5, renew=True)
    with telemetry.tracer.start_as_current_span("view") as view:
        lock.acquire()
    r.delete("order:1")
    assert lock.lost.wait(10)
    with pytest.raises(LeaseLost):
        lock.release()
    (hold,) = telemetry.spans("fenced_lock hold")
    assert hold.parent.span_id == view.get_span_context().span_id
    assert hold.status.status_code is StatusCode.ERROR
    points = telemetry.points()
    assert points["lost"] == {(): 1}
    ((labels, (count, held)),) = points["held"].items()
    assert (labels, count) == (("outcome=lost",), 1)
    assert held > 0


@pytest.mark.parametrize("waits", ["thread", "task"])
def test_a_busy_lock_gives_a_span_that_lasts_as_long_as_the_wait(r, in_loop, telemetry, waits):
    r.set("order:1", "somebody", px=60_000)

    async def wait(client):
        await AsyncFencedLock(client, "order:1", blocking_timeout=0.2).__aenter__()

    with pytest.raises(LockNotAcquired):
        in_loop(wait) if waits == "task" else FencedLock(r, "order:1", blocking_timeout=0.2).__enter__()
    (span,) = telemetry.spans("fenced_lock acquire")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["fenced_locks.owner_id"] == "somebody"
    assert span.end_time - span.start_time > 0.1e9
    points = telemetry.points()
    assert points["busy"] == {(): 1}
    ((labels, (count, waited)),) = points["waited"].items()
    assert (labels, count) == (("outcome=busy",), 1)
    assert waited > 0.1
    assert telemetry.spans("fenced_lock hold") == []


def test_no_label_names_a_resource_unless_asked_for(r, telemetry):
    for number in range(3):
        with FencedLock(r, f"order:{number}", timeout=10):
            pass
    points = telemetry.points()
    assert points["acquired"] == {(): 3}
    assert {labels: count for labels, (count, _) in points["held"].items()} == {("outcome=released",): 3}
    assert {labels: count for labels, (count, _) in points["waited"].items()} == {("outcome=acquired",): 3}


def test_a_label_may_be_made_of_the_resource_and_the_last_call_counts(r, telemetry):
    telemetry.instrument(resource_label=lambda resource: resource.partition(":")[0])
    for number in range(3):
        with FencedLock(r, f"order:{number}", timeout=10):
            pass
    assert telemetry.points()["acquired"] == {("resource=order",): 3}


def test_nothing_is_made_any_more_after_uninstrument(r, telemetry):
    with FencedLock(r, "order:1", timeout=10):
        otel.uninstrument()
    with FencedLock(r, "order:1", timeout=10):
        pass
    assert telemetry.points()["acquired"] == {(): 1}
    assert "held" not in telemetry.points()
    assert not any(getattr(signals, name).is_heard() for name in vars(signals) if name.startswith("lease_"))
    otel.uninstrument()


@pytest.mark.django_db
def test_a_refused_write_is_counted_and_is_an_event_of_the_current_span(telemetry):
    order = Order.objects.create()
    mine = Order.objects.filter(pk=order.pk)
    mine.fenced_update(5)
    with telemetry.tracer.start_as_current_span("view"):
        assert mine.fenced_update(4) == 0
        assert mine.fenced_update(5) == 0
        assert Order.objects.filter(pk=0).fenced_update(5) == 0
        with pytest.raises(StaleToken):
            order.fenced_save(3)
    assert telemetry.points()["stale_writes"] == {
        ("model=app.Order", "reason=stale"): 2,
        ("model=app.Order", "reason=repeated"): 1,
    }
    (view,) = telemetry.spans("view")
    assert [event.attributes["fenced_locks.fence_token"] for event in view.events] == [4, 5, 3]


@pytest.mark.django_db(transaction=True)
def test_a_lease_is_held_until_the_transaction_has_ended(r, telemetry):
    with transaction.atomic():
        with fenced_lock("order:1"):
            pass
        assert telemetry.spans("fenced_lock hold") == []
    assert len(telemetry.spans("fenced_lock hold")) == 1


def test_a_label_that_fails_breaks_no_lock(r, telemetry, caplog):
    telemetry.instrument(resource_label=lambda resource: 1 / 0)
    with FencedLock(r, "order:1", timeout=10):
        pass
    assert "an observer of a lease failed" in caplog.text
    assert not r.exists("order:1")


@pytest.mark.parametrize("name", ["tracer_provider", "meter_provider", "resource_label"])
def test_an_argument_of_a_wrong_type_is_refused_and_the_earlier_call_counts_on(r, telemetry, name):
    with pytest.raises(TypeError, match=rf"^{name} must be .*, not 'order'$"):
        otel.instrument(**{name: "order"})
    with FencedLock(r, "order:1", timeout=10):
        pass
    assert len(telemetry.spans("fenced_lock hold")) == 1


def test_the_api_alone_is_enough(r):
    otel.instrument()
    try:
        with FencedLock(r, "order:1", timeout=10):
            pass
    finally:
        otel.uninstrument()


def test_without_the_package_the_error_names_the_extra():
    code = "import sys; sys.modules['opentelemetry'] = None; import fenced_locks; import fenced_locks.otel"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "ImportError: fenced_locks.otel needs the package opentelemetry-api" in done.stderr
    assert "django-fenced-locks[otel]" in done.stderr
